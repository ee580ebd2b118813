// What a refusal of one of several servers means. Knows no gRPC.
#ifndef CLIENT_SHARD_ERRORS_H_
#define CLIENT_SHARD_ERRORS_H_

#include <string>

#include "absl/status/status.h"

namespace routing_replay::client {

// No answer, rather than a refusal.
bool IsUnreachable(const absl::Status& status);
bool IsNoRun(const absl::Status& status);
bool IsNoSample(const absl::Status& status);
// `status` with the server named before its message. OK stays OK.
absl::Status WithServer(const absl::Status& status, const std::string& endpoint);

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_ERRORS_H_
