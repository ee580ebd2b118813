// What all benchmarks take.
#ifndef TESTS_BENCH_COMMON_OPTIONS_H_
#define TESTS_BENCH_COMMON_OPTIONS_H_

#include <string>

namespace routing_replay::bench {

// Which processes tune glibc's allocator, as the service's programs do (TuneAllocator).
struct Tuning {
  bool server = true;
  bool clients = true;
};
inline constexpr Tuning kUntuned{false, false};

struct BenchOptions {
  std::string server;  // Path of routing-replay-server.
  int repetitions = 7;
  bool quick = false;  // Small and short: to see that it runs.
  Tuning tuning;
  // Also everything with kUntuned, in the same rounds, beside `tuning`.
  bool beside_untuned = false;
  std::string python;  // An interpreter: the hand-off with Python at both ends too, in the same rounds.

  int rounds() const { return quick ? 1 : repetitions; }
};

// Rounds before the counted ones: what is slow once has been paid for.
inline constexpr int kWarmUpRounds = 2;

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_COMMON_OPTIONS_H_
