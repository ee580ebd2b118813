// Endpoints as users write them.
#ifndef CLIENT_CHANNEL_ENDPOINT_H_
#define CLIENT_CHANNEL_ENDPOINT_H_

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay {

// The environment variable that is asked when no endpoint is given.
inline constexpr char kEndpointVariable[] = "ROUTING_REPLAY_ENDPOINT";

// `endpoint`, or the environment's where it is empty. INVALID_ARGUMENT if that is empty too.
absl::StatusOr<std::string> EndpointOrEnvironment(absl::string_view endpoint);

// "host:port", "[v6]:port" or "unix:PATH" as a gRPC target. INVALID_ARGUMENT (kField) saying what is wrong. Does not
// resolve names.
absl::StatusOr<std::string> GrpcTarget(absl::string_view endpoint);

// The gRPC target of `endpoint` (or of the environment's). An endpoint "file:PATH" stands for what is in that file, as
// routing-replay-server --endpoint-file writes it: waits for the file to be there for at most `timeout`, then
// DEADLINE_EXCEEDED.
absl::StatusOr<std::string> ResolveEndpoint(absl::string_view endpoint, std::chrono::milliseconds timeout);

}  // namespace routing_replay

#endif  // CLIENT_CHANNEL_ENDPOINT_H_
