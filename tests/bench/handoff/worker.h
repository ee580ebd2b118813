// A rollout worker of the hand-off: holds the rows of its engine as uint8 and as int32, and hands them over.
#ifndef TESTS_BENCH_HANDOFF_WORKER_H_
#define TESTS_BENCH_HANDOFF_WORKER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tests/bench/common/team.h"
#include "tests/bench/handoff/scenario.h"

namespace routing_replay::bench {

inline constexpr char kHandoffRun[] = "handoff";
// The values of ROUTING_REPLAY_TRANSPORT for a client.
inline constexpr const char* kTransports[] = {"direct", "unix", "shm", "grpc"};

// Commands: "open ENDPOINT HUB_PORT" connects to both; "hub" sends to the hub; "u8 ROUND TRANSPORT" and "i32 ROUND
// TRANSPORT" append to the service over one of kTransports, after worker 0 has released the previous round. They return
// when everything is acknowledged. "payload" returns the payload bytes sent to the service so far.
absl::StatusOr<std::unique_ptr<Role>> MakeWorker(const HandoffScenario& scenario, int32_t worker);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_HANDOFF_WORKER_H_
