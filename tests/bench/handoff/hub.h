// The floor of the hand-off: all rows into a TCP hub once, and each rank's prepared bytes out of it once.
#ifndef TESTS_BENCH_HANDOFF_HUB_H_
#define TESTS_BENCH_HANDOFF_HUB_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tests/bench/common/team.h"
#include "tests/bench/handoff/scenario.h"

namespace routing_replay::bench {

// A TCP hub that stores rows by sample and has the expected array of each rank prepared. The answer to any command is
// its port and the SHA-256 of each rank's expected array, in the order of ranks.
absl::StatusOr<std::unique_ptr<Role>> MakeHandoffHub(const HandoffScenario& scenario);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_HANDOFF_HUB_H_
