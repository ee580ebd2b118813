// A short load on a running server: is it well, and how fast is it from here?
#ifndef CLIENT_RRCTL_BENCH_BENCH_H_
#define CLIENT_RRCTL_BENCH_BENCH_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "client/rrctl/progress.h"
#include "client/rrctl/table.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

struct BenchOptions {
  int64_t samples = 32;  // Per round.
  int64_t tokens = 2048;
  int workers = 4;
  int rounds = 3;
  std::chrono::seconds max_time{60};  // No sample is begun afterwards.
  int32_t layers = 48;
  int32_t experts = 128;
  int32_t top_k = 8;
  std::string run;  // That is made and dropped; empty: one with a name of its own.
};

struct BenchHooks {
  // Called often, by the calling thread: waits a little. True: come to an end.
  std::function<bool(std::chrono::milliseconds time)> interrupted;
  ShowProgress progress;
};

// In each round the workers append all samples with random experts, each sealed and acknowledged before the worker's
// next, then read them back whole; then the samples are released. All of it happens in a run of its own, which is
// dropped at the end, also after a failure.
//
// Figures of latency: of all samples, and the 90th, 99th and 99.9th percentile of each round.
// {"figures": […], "host": {…}, "server": {…}, "load": {…}}; throughput counts bytes of rows in their narrowest plain
// form. FAILED_PRECONDITION if a round would fill more than half of the server's free budget, INVALID_ARGUMENT for
// sizes that make no sample, CANCELLED if interrupted, DEADLINE_EXCEEDED if max_time passed before anything was read.
absl::StatusOr<Document> RunBench(Client& client, const BenchOptions& options, const BenchHooks& hooks);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_BENCH_BENCH_H_
