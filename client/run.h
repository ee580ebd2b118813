// One run over a channel.
#ifndef CLIENT_RUN_H_
#define CLIENT_RUN_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/caller.h"
#include "routing_replay/client.h"

namespace routing_replay {

// Makes or joins a run: `request` with geometry makes it, without joins. Exchanges versions: FAILED_PRECONDITION
// (kVersionMismatch) naming both if the server is of another major version.
absl::StatusOr<std::shared_ptr<Run>> OpenRunWith(std::shared_ptr<const Caller> caller, v1::OpenRunRequest request);

// Settings as a message, and back.
v1::RunOptions ToProto(const RunSettings& settings);
absl::StatusOr<RunSettings> FromProto(const v1::RunOptions& options);

}  // namespace routing_replay

#endif  // CLIENT_RUN_H_
