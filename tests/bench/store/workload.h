// The data that a store keeps in this benchmark: samples of whole blocks of random routes.
#ifndef TESTS_BENCH_STORE_WORKLOAD_H_
#define TESTS_BENCH_STORE_WORKLOAD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/block/block.h"
#include "proto/wire/buffer.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::bench {

// Threads that append and read at the same time, each with its own samples.
inline constexpr int kStoreCallers = 4;

// Immutable.
class Workload {
 public:
  // 48 layers, 8 of `num_experts`, as in the standard hand-off, in samples of 4096 rows. In total 101 MB, or 9 MB for a
  // quick run, for any number of experts.
  Workload(int32_t num_experts, bool quick);

  const std::shared_ptr<const Geometry>& geometry() const { return geometry_; }
  int32_t num_experts() const { return num_experts_; }
  int32_t samples() const { return samples_; }
  int32_t blocks_per_sample() const { return kBlocksPerSample; }
  int64_t block_bytes() const { return block_bytes_; }
  int64_t bytes() const { return samples_ * int64_t{kBlocksPerSample} * block_bytes_; }

  static RowRange RowsOf(int32_t block);
  absl::Span<const uint8_t> Bytes(int32_t sample, int32_t block) const;
  const std::vector<uint32_t>& Crcs(int32_t sample, int32_t block) const;

  // Calls `call` with every sample on kStoreCallers threads, one per caller. Returns the first error.
  absl::Status ForEachSample(const std::function<absl::Status(int caller, int32_t sample)>& call) const;

 private:
  static constexpr int32_t kBlocksPerSample = 16;

  int32_t num_experts_;
  std::shared_ptr<const Geometry> geometry_;
  int32_t samples_;
  int64_t block_bytes_;
  Buffer bytes_;
  std::vector<std::vector<uint32_t>> crcs_;
};

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_STORE_WORKLOAD_H_
