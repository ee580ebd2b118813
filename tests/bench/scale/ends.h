// The processes on both sides of the server: one that appends, and one that reads for all ranks.
#ifndef TESTS_BENCH_SCALE_ENDS_H_
#define TESTS_BENCH_SCALE_ENDS_H_

#include <cstdint>
#include <memory>

#include "tests/bench/common/team.h"

namespace routing_replay::bench {

// The samples of a hand-off. Rank r of n reads all layers and rows of the samples r, r + n, ….
struct Shape {
  int64_t samples = 0, rows = 0;
  int32_t layers = 0;
  int ranks = 1;

  int64_t sample_bytes() const { return rows * layers * kTopK; }
  int64_t bytes() const { return samples * sample_bytes(); }

  static constexpr int kTopK = 8, kExperts = 128;  // One byte per id.
};

// Settings that bound memory: the queue of the appender, and the bytes that all ranks together read at once.
inline constexpr int64_t kQueuedBytes = int64_t{64} << 20, kReadBytes = int64_t{64} << 20;

// Do("append ENDPOINT") appends all samples and waits until they are acknowledged.
std::unique_ptr<Role> MakeWriter(const Shape& shape);
// Do("read ENDPOINT") reads with one client per rank, all at once. DATA_LOSS for a wrong byte.
std::unique_ptr<Role> MakeReaders(const Shape& shape);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SCALE_ENDS_H_
