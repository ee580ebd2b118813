// Endpoints as users write them.
#ifndef CLIENT_CHANNEL_ENDPOINT_H_
#define CLIENT_CHANNEL_ENDPOINT_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/mutex.h"

namespace routing_replay::client {

// The environment variable that is used when no endpoint is given.
inline constexpr char kEndpointVariable[] = "ROUTING_REPLAY_ENDPOINT";

// `endpoint`, or the environment's where it is empty. INVALID_ARGUMENT if that is empty too.
absl::StatusOr<std::string> EndpointOrEnvironment(absl::string_view endpoint);

// "host:port", "[v6]:port" or "unix:PATH" as a gRPC target. INVALID_ARGUMENT (kField) saying what is wrong. Does not
// resolve names.
absl::StatusOr<std::string> GrpcTarget(absl::string_view endpoint);

// The host of a target that is no Unix socket's: a name, or an address without brackets.
std::string HostOf(absl::string_view target);

// What a channel connects to.
struct ServerTarget {
  std::string target;
  // Every address of the target's name is a server; calls go to them in turn, skipping those that are away.
  bool round_robin = false;
  // For members on this machine, in a list with members elsewhere: one of those, because the client may move on to it.
  std::string elsewhere = {};

  // The target that decides about encryption and tokens, the same for all servers of the endpoint.
  const std::string& judged() const { return elsewhere.empty() ? target : elsewhere; }
  friend bool operator==(const ServerTarget&, const ServerTarget&) = default;
};

// Where an endpoint leads: one target, or several, any of which serves any sample.
//   host:port, [v6]:port, unix:PATH        one server
//   host:port,host:port,...                 several; each as above, none unix:, none twice
//   dns:///host:port                       every address of the name
// INVALID_ARGUMENT (kField) naming the member that is wrong.
absl::StatusOr<std::vector<ServerTarget>> ServerTargets(absl::string_view endpoint);

// The targets of `endpoint` (or of the environment's). An endpoint "file:PATH" stands for the first line of that file,
// as routing-replay-server --endpoint-file writes it: waits at most `timeout` for the file, then DEADLINE_EXCEEDED.
absl::StatusOr<std::vector<ServerTarget>> ResolveEndpoint(absl::string_view endpoint,
                                                          std::chrono::milliseconds timeout);

// Thread-safe.
class ServerChoice {
 public:
  // A random number, for `begin`.
  static uint64_t AnyBegin();

  // The endpoint as for ResolveEndpoint. `begin`, modulo their number, says which member comes first.
  ServerChoice(std::string endpoint, uint64_t begin) : endpoint_(std::move(endpoint)), begin_(begin) {}

  // The present server. While that is unknown, this resolves the endpoint, with the errors and the waiting of
  // ResolveEndpoint, which affect only this call.
  absl::StatusOr<ServerTarget> Wait(std::chrono::milliseconds timeout);
  // True if there may be another server when the present one is away. False while nothing is known.
  bool HasOthers() const;
  // A call to `target` found no server: moves on to the next, unless another call has done so already. For "file:PATH"
  // it first reads the file again.
  void OnUnavailable(absl::string_view target);
  // Reads that file again: a restarted server may have another port. If the file is empty (there is no server) or
  // unchanged, nothing changes.
  void LookAgain();

 private:
  void Take(std::vector<ServerTarget> targets) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string endpoint_;
  const uint64_t begin_;
  mutable Mutex mutex_;
  std::vector<ServerTarget> targets_ ABSL_GUARDED_BY(mutex_);  // Empty: not known yet.
  size_t at_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_ENDPOINT_H_
