// A rollout worker of the hand-off: holds what its engine produced, as uint8 and as int32, and hands it over.
#ifndef TESTS_BENCH_HANDOFF_WORKER_H_
#define TESTS_BENCH_HANDOFF_WORKER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tests/bench/common/team.h"
#include "tests/bench/handoff/scenario.h"

namespace routing_replay::bench {

inline constexpr char kHandoffRun[] = "handoff";
// What ROUTING_REPLAY_TRANSPORT may say of a client.
inline constexpr const char* kTransports[] = {"direct", "unix", "shm", "grpc"};

// Commands: "open ENDPOINT HUB_PORT" connects to both; "hub" hands over to the hub; "u8 ROUND TRANSPORT" and
// "i32 ROUND TRANSPORT" hand over to the service by one of kTransports, worker 0 releasing the round before first. They
// return when everything is acknowledged. "payload" gives the payload bytes sent to the service so far.
absl::StatusOr<std::unique_ptr<Role>> MakeWorker(const HandoffScenario& scenario, int32_t worker);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_HANDOFF_WORKER_H_
