// The processes on both sides of the server: one that appends, and one for all ranks.
#ifndef TESTS_BENCH_SCALE_ENDS_H_
#define TESTS_BENCH_SCALE_ENDS_H_

#include <cstdint>
#include <memory>

#include "tests/bench/common/team.h"

namespace routing_replay::bench {

// What is handed over. Rank r of n reads the samples r, r + n, …; all layers and rows of them.
struct Shape {
  int64_t samples = 0, rows = 0;
  int32_t layers = 0;
  int ranks = 1;

  int64_t sample_bytes() const { return rows * layers * kTopK; }
  int64_t bytes() const { return samples * sample_bytes(); }

  static constexpr int kTopK = 8, kExperts = 128;  // One byte per id.
};

// What each side holds at most by its settings: the queue of the appender, and what all ranks together read at once.
inline constexpr int64_t kQueuedBytes = int64_t{64} << 20, kReadBytes = int64_t{64} << 20;

// Do("append ENDPOINT"): all samples, until they are acknowledged.
std::unique_ptr<Role> MakeWriter(const Shape& shape);
// Do("read ENDPOINT"): every rank with a client of its own, all at once. DATA_LOSS for a wrong byte.
std::unique_ptr<Role> MakeReaders(const Shape& shape);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SCALE_ENDS_H_
