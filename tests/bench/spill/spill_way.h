// The ways of spilling that BenchSpill compares.
#ifndef TESTS_BENCH_SPILL_SPILL_WAY_H_
#define TESTS_BENCH_SPILL_SPILL_WAY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace routing_replay::bench {

// Keeps blocks on a disk. For one thread.
class SpillWay {
 public:
  virtual ~SpillWay() = default;

  virtual absl::Status Write(absl::Span<const uint8_t> block) = 0;
  // After it, written blocks use no memory of this process.
  virtual absl::Status Flush() = 0;
  // Returns what `look` returns for the n-th written block; false if the block cannot be read.
  virtual bool Read(size_t n, size_t bytes, const std::function<bool(absl::Span<const uint8_t>)>& look) = 0;
};

// Opens a way of spilling in an empty directory.
using MakeSpillWay = absl::StatusOr<std::unique_ptr<SpillWay>> (*)(const std::string& directory);
absl::StatusOr<std::unique_ptr<SpillWay>> SegmentFiles(const std::string& directory);
absl::StatusOr<std::unique_ptr<SpillWay>> RocksBlobs(const std::string& directory);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SPILL_SPILL_WAY_H_
