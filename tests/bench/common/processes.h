// Starts the processes of a benchmark, each with or without allocator tuning.
#ifndef TESTS_BENCH_COMMON_PROCESSES_H_
#define TESTS_BENCH_COMMON_PROCESSES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/options.h"
#include "tests/bench/common/team.h"
#include "tests/quickstart/server_process.h"

namespace routing_replay::bench {

// Starts routing-replay-server on a free port of the loopback interface, with additional `flags`; returns when it
// listens.
absl::StatusOr<quickstart::ServerProcess> StartServer(const std::string& program,
                                                      const std::vector<std::string>& flags = {});

absl::StatusOr<Team> StartTeam(const std::string& name, int count, bool tuned, const MakeRole& make);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_COMMON_PROCESSES_H_
