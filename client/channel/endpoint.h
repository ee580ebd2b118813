// Parses endpoints as users write them, and chooses a server of an endpoint.
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
inline constexpr absl::string_view kUnixPrefix = "unix:";  // Begins the endpoint of a Unix socket.

// Returns `endpoint`, or the value of the environment variable if it is empty. INVALID_ARGUMENT if both are empty.
absl::StatusOr<std::string> EndpointOrEnvironment(absl::string_view endpoint);

// Converts "host:port", "[v6]:port" or "unix:PATH" to a gRPC target. INVALID_ARGUMENT (kField) with the reason. Does
// not resolve names.
absl::StatusOr<std::string> GrpcTarget(absl::string_view endpoint);

// Returns the host of a target that is not a Unix socket: a name, or an address without brackets.
std::string HostOf(absl::string_view target);

// The target of a channel.
struct ServerTarget {
  std::string target;
  // Every address of the name is a server; calls go to them in turn, skipping those that cannot be reached.
  bool round_robin = false;
  // Set if this server is on this machine, but others of its list are elsewhere: the target of one of those others,
  // because the client may move on to it.
  std::string elsewhere = {};

  // The target by which the client decides about encryption and tokens, so that it decides the same for all servers of
  // the endpoint.
  const std::string& judged() const { return elsewhere.empty() ? target : elsewhere; }
  friend bool operator==(const ServerTarget&, const ServerTarget&) = default;
};

// Resolves an endpoint to one target, or to several, any of which serves any sample.
//   host:port, [v6]:port, unix:PATH    one server
//   host:port,host:port,...            several servers; none may be a unix:PATH or occur twice
//   dns:///host:port                   every address of the name
// INVALID_ARGUMENT (kField) naming the member that is wrong.
absl::StatusOr<std::vector<ServerTarget>> ServerTargets(absl::string_view endpoint);

// The targets of `endpoint`. An endpoint "file:PATH" stands for the first line of that file, which
// routing-replay-server --endpoint-file writes. DEADLINE_EXCEEDED if there is no such line within `timeout`.
absl::StatusOr<std::vector<ServerTarget>> ResolveEndpoint(absl::string_view endpoint,
                                                          std::chrono::milliseconds timeout);

// Thread-safe.
class ServerChoice {
 public:
  // `endpoint` as for ResolveEndpoint. The first server is number `begin` modulo the number of servers.
  ServerChoice(std::string endpoint, uint64_t begin) : endpoint_(std::move(endpoint)), begin_(begin) {}

  // Returns the current server. If it is not known yet, resolves the endpoint first, and may wait or fail like
  // ResolveEndpoint; a later call tries again.
  absl::StatusOr<ServerTarget> Wait(std::chrono::milliseconds timeout);
  // Returns true if the client may move on to another server. False while the endpoint is not resolved.
  bool HasOthers() const;
  // Reports that a call to `target` found no server. Moves on to the next server, unless another call has done so
  // already. For "file:PATH", first reads the file again.
  void OnUnavailable(absl::string_view target);
  // Reads the file of a "file:PATH" again, because a restarted server may have another port. An empty file (there is no
  // server) or an unchanged one has no effect.
  void LookAgain();

 private:
  void Take(std::vector<ServerTarget> targets) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string endpoint_;
  const uint64_t begin_;
  mutable Mutex mutex_;
  std::vector<ServerTarget> targets_ ABSL_GUARDED_BY(mutex_);  // Empty: not resolved yet.
  size_t at_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_ENDPOINT_H_
