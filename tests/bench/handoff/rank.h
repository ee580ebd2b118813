// A trainer rank of the hand-off: fetches its layers and rows into index buffers.
#ifndef TESTS_BENCH_HANDOFF_RANK_H_
#define TESTS_BENCH_HANDOFF_RANK_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tests/bench/common/team.h"
#include "tests/bench/handoff/scenario.h"

namespace routing_replay::bench {

// Commands: "open ENDPOINT HUB_PORT" connects to both; "hub" fetches from the hub, "service ROUND TRANSPORT" from the
// service over one of kTransports; "poison" overwrites all outputs; "digest hub" and "digest service" return the
// SHA-256 of [layers of the stage][local rows][K].
absl::StatusOr<std::unique_ptr<Role>> MakeRank(const HandoffScenario& scenario, int32_t rank);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_HANDOFF_RANK_H_
