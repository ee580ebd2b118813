// Options of all benchmarks.
#ifndef TESTS_BENCH_COMMON_OPTIONS_H_
#define TESTS_BENCH_COMMON_OPTIONS_H_

#include <string>

namespace routing_replay::bench {

// Which processes tune glibc's allocator as the service's programs do (TuneAllocator).
struct Tuning {
  bool server = true;
  bool clients = true;
};
inline constexpr Tuning kUntuned{false, false};

struct BenchOptions {
  std::string server;  // Path of routing-replay-server.
  int repetitions = 7;
  bool quick = false;  // Few and small rounds, only to see that the benchmark runs.
  Tuning tuning;
  // If true, each round also measures everything without allocator tuning (kUntuned).
  bool beside_untuned = false;
  std::string python;  // Path of an interpreter; if set, also measures the hand-off with Python at both ends.

  int rounds() const { return quick ? 1 : repetitions; }
};

// Rounds that are not counted, so that one-time costs are not measured.
inline constexpr int kWarmUpRounds = 2;

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_COMMON_OPTIONS_H_
