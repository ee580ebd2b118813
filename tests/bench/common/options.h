// What all benchmarks take.
#ifndef TESTS_BENCH_COMMON_OPTIONS_H_
#define TESTS_BENCH_COMMON_OPTIONS_H_

#include <string>

namespace routing_replay::bench {

struct BenchOptions {
  std::string server;  // Path of routing-replay-server.
  int repetitions = 7;
  bool quick = false;  // Small and short: to see that it runs.
  // Whether processes call TuneAllocator: the server, and the clients.
  bool tune_server = true;
  bool tune_clients = true;
};

// Rounds before the counted ones: what is slow once has been paid for.
inline constexpr int kWarmUpRounds = 2;

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_COMMON_OPTIONS_H_
