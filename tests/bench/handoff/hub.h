// The floor of the hand-off: all rows into a TCP hub once, each rank its ready bytes out once.
#ifndef TESTS_BENCH_HANDOFF_HUB_H_
#define TESTS_BENCH_HANDOFF_HUB_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tests/bench/common/team.h"
#include "tests/bench/handoff/scenario.h"

namespace routing_replay::bench {

// A TCP hub that stores by sample and has the array of each rank ready. Any command is answered with its port and the
// SHA-256 of the arrays that the ranks must end up with, in the order of ranks.
absl::StatusOr<std::unique_ptr<Role>> MakeHandoffHub(const HandoffScenario& scenario);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_HANDOFF_HUB_H_
