// Decides whether Append and Read bypass gRPC, and over which connection.
#ifndef CLIENT_CHANNEL_DIRECT_PATH_H_
#define CLIENT_CHANNEL_DIRECT_PATH_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/channel/client_security.h"
#include "client/channel/direct_connection.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"

namespace routing_replay::client {

// The environment variable that chooses the transport of Append and Read. "auto" or unset: the direct path, if the
// server has one, else gRPC. "direct", "unix", "shm": the direct path only over TCP, a Unix socket or shared memory.
// "grpc": never the direct path.
inline constexpr char kTransportVariable[] = "ROUTING_REPLAY_TRANSPORT";

// A channel to a server, and what is needed for calls to this server.
struct ServerConnection {
  std::shared_ptr<grpc::Channel> channel;
  std::string authorization;       // The token in the form of the metadata; empty: none.
  std::string target;              // The target of the channel.
  std::shared_ptr<DirectTls> tls;  // For the direct path. Null: neither the channel nor the direct path is encrypted.
  absl::string_view not_direct;    // Why the direct path must not be used; empty: it may be used.

  // Adds the metadata; call this before the RPC begins.
  void Authorize(grpc::ClientContext& context) const {
    if (!authorization.empty()) context.AddMetadata(kAuthorizationKey, authorization);
  }
};

// The direct path to one server at a time. Thread-safe.
class DirectPath {
 public:
  DirectPath();

  // Begins a call of `method` with this deadline over the direct path, and returns its connection, on which the next
  // TrySend or Send sends the frame that begins the call. Null: make the call over gRPC. If the server has no direct
  // path, or it did not answer, later calls also get null for a minute. Takes at most kPatience, and at most half of
  // the time that is left for the call.
  std::unique_ptr<DirectConnection> Begin(const ServerConnection& server, const std::string& method,
                                          Clock::Time deadline);
  // Keeps a connection that Begin returned for this server, and whose call ended with OK, for a later call.
  void GiveBack(const ServerConnection& server, std::unique_ptr<DirectConnection> connection);
  // Closes all idle connections and forgets what is known about the server. Call this if a call on the direct path
  // broke off, because that knowledge may be stale, and before the process forks.
  void OnBroken();
  // Connects, regardless of earlier failures, and describes the transport in words. NOT_FOUND with the reason if there
  // is no direct path; UNAVAILABLE if there is one but it cannot be reached; or the error of asking for it over gRPC.
  absl::StatusOr<std::string> Look(const ServerConnection& server);

  static constexpr std::chrono::seconds kPatience{1};

 private:
  enum class Transport { kAuto, kGrpc, kTcp, kUnix, kShm };
  struct Offer {
    std::string target, authorization;
    std::shared_ptr<DirectTls> tls;
    std::vector<DirectAddress> addresses;  // In the order in which they are tried.
    std::string ticket;
    Clock::Time renew;

    bool IsOf(const ServerConnection& server) const { return target == server.target && tls == server.tls; }
  };
  using Connection = std::unique_ptr<DirectConnection>;

  static Transport Wanted();
  std::optional<Offer> Known(const ServerConnection& server);
  bool IsAvoided(const ServerConnection& server);
  void Avoid(const ServerConnection& server, const absl::Status& why);
  // Asks the server over gRPC for its direct path. NOT_FOUND with the reason if it has none; or the error of the call.
  absl::StatusOr<Offer> Ask(const ServerConnection& server, Clock::Time deadline) const;
  // Returns an idle connection, or a new one after a successful greeting. UNAVAILABLE if there is none.
  absl::StatusOr<Connection> ConnectTo(const ServerConnection& server, const Offer& offer, Clock::Time deadline);
  Connection TakeIdle(const ServerConnection& server);

  const Transport transport_;
  Mutex mutex_;
  std::optional<Offer> offer_ ABSL_GUARDED_BY(mutex_);
  std::vector<Connection> idle_ ABSL_GUARDED_BY(mutex_);  // Idle connections to the server of `offer_`.
  std::string avoided_ ABSL_GUARDED_BY(mutex_);           // The target whose direct path is not tried.
  Clock::Time avoid_until_ ABSL_GUARDED_BY(mutex_);       // When `avoided_` may be tried again.
  std::string told_ ABSL_GUARDED_BY(mutex_);              // The target about which a line was logged already.
};

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_DIRECT_PATH_H_
