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

// Thread-safe.
class ServerChoice {
 public:
  // A number by chance, for `begin`.
  static uint64_t AnyBegin();

  // The endpoint as ResolveEndpoint takes it. `begin` says which member comes first, modulo their number.
  ServerChoice(std::string endpoint, uint64_t begin) : endpoint_(std::move(endpoint)), begin_(begin) {}

  // The present server. While that is not known it resolves the endpoint, with the errors of ResolveEndpoint and its
  // waiting, of this call alone.
  absl::StatusOr<ServerTarget> Wait(std::chrono::milliseconds timeout);
  // Whether there may be another server when the present one is away. False while nothing is known.
  bool HasOthers() const;
  // A call to `target` found no server: goes on to the next, unless another call has done so already. The file of a
  // "file:PATH" is read first.
  void OnUnavailable(absl::string_view target);
  // Reads that file again: a restarted server may have another port. Where nothing is in it (no server is
  // there) or nothing new, all stays.
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
