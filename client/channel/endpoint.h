// Endpoints as users write them.
#ifndef CLIENT_CHANNEL_ENDPOINT_H_
#define CLIENT_CHANNEL_ENDPOINT_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay::client {

// The environment variable that is asked when no endpoint is given.
inline constexpr char kEndpointVariable[] = "ROUTING_REPLAY_ENDPOINT";

// `endpoint`, or the environment's where it is empty. INVALID_ARGUMENT if that is empty too.
absl::StatusOr<std::string> EndpointOrEnvironment(absl::string_view endpoint);

// "host:port", "[v6]:port" or "unix:PATH" as a gRPC target. INVALID_ARGUMENT (kField) saying what is wrong. Does not
// resolve names.
absl::StatusOr<std::string> GrpcTarget(absl::string_view endpoint);

// What a channel is made to.
struct ServerTarget {
  std::string target;
  // Every address behind the target's name is a server; calls go to them in turn, past those that are away.
  bool round_robin = false;
  // Of a list with members here and elsewhere, for those here: one elsewhere, to which the client may come to go.
  std::string elsewhere = {};

  // What says how the endpoint's servers may be spoken to: for all of them alike.
  const std::string& judged() const { return elsewhere.empty() ? target : elsewhere; }
  friend bool operator==(const ServerTarget&, const ServerTarget&) = default;
};

// Where an endpoint leads: one target, or several, any of which serves any sample.
//   host:port, [v6]:port, unix:PATH        one server
//   host:port,host:port,...                 several; each as above, none unix:, none twice
//   dns:///host:port                       every address of the name
// INVALID_ARGUMENT (kField) naming the member that is wrong.
absl::StatusOr<std::vector<ServerTarget>> ServerTargets(absl::string_view endpoint);

// Those of `endpoint` (or of the environment's). An endpoint "file:PATH" stands for what is in the first line of that
// file, as routing-replay-server --endpoint-file writes it: waits for the file to be there for at most `timeout`, then
// DEADLINE_EXCEEDED.
absl::StatusOr<std::vector<ServerTarget>> ResolveEndpoint(absl::string_view endpoint,
                                                          std::chrono::milliseconds timeout);

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_ENDPOINT_H_
