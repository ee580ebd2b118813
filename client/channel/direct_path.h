// Decides whether Append and Read bypass gRPC, and over which connection.
#ifndef CLIENT_CHANNEL_DIRECT_PATH_H_
#define CLIENT_CHANNEL_DIRECT_PATH_H_

#include <grpcpp/channel.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/channel/direct_connection.h"
#include "client/channel/endpoint.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"

namespace routing_replay::client {

// The environment variable that chooses the transport of Append and Read. "auto" or unset: the direct path, if the
// server has one, else gRPC. "direct", "unix" or "shm": of the direct path only TCP, the Unix socket or shared memory.
// "grpc": never the direct path.
inline constexpr char kTransportVariable[] = "ROUTING_REPLAY_TRANSPORT";

// The direct path to one server at a time. Thread-safe.
class DirectPath {
 public:
  // What the client knows about a server that may have a direct path.
  struct Server {
    std::shared_ptr<grpc::Channel> channel;
    std::string authorization;
    std::string target;              // The target of the gRPC channel.
    std::shared_ptr<DirectTls> tls;  // Null if the channel is not encrypted; then the direct path is not either.
  };

  DirectPath();

  // Begins a call of `method` with this deadline over the direct path, and returns its connection. Null: make the call
  // over gRPC. If the direct path did not answer, later calls also get null for a minute. Takes at most kPatience, and
  // at most half of the time that is left for the call.
  std::unique_ptr<DirectConnection> Begin(const Server& server, const std::string& method, Clock::Time deadline);
  // The call on this connection, from Begin with this server, ended with OK: the connection may be reused.
  void GiveBack(const Server& server, std::unique_ptr<DirectConnection> connection);
  // A call on the direct path broke off: what is known about the server may be stale.
  void OnBroken();
  // Before a fork: closes all connections.
  void Rest() { OnBroken(); }
  // Connects, regardless of earlier failures, and describes the transport in words. NOT_FOUND with the reason if there
  // is no direct path; UNAVAILABLE if there is one but it cannot be reached.
  absl::StatusOr<std::string> Look(const Server& server);

  static constexpr std::chrono::seconds kPatience{1};

 private:
  enum class Transport { kAuto, kGrpc, kTcp, kUnix, kShm };
  struct Offer {
    std::string target, authorization;
    std::shared_ptr<DirectTls> tls;
    std::vector<DirectAddress> addresses;  // In the order in which they are tried.
    std::string ticket;
    Clock::Time renew;
  };
  using Connection = std::unique_ptr<DirectConnection>;

  static Transport Wanted();
  std::optional<Offer> Known(const Server& server);
  bool IsAvoided(const Server& server);
  void Avoid(const Server& server, const absl::Status& why);
  // Asks the server over gRPC for its direct path. NOT_FOUND with the reason if it has none; or the error of the call.
  absl::StatusOr<Offer> Ask(const Server& server, Clock::Time deadline) const;
  // Returns an idle connection, or a new one after a successful greeting. UNAVAILABLE if there is none.
  absl::StatusOr<Connection> ConnectTo(const Offer& offer, Clock::Time deadline);
  Connection TakeIdle(const Offer& offer);

  const Transport transport_;
  Mutex mutex_;
  std::optional<Offer> offer_ ABSL_GUARDED_BY(mutex_);
  std::vector<Connection> idle_ ABSL_GUARDED_BY(mutex_);  // Idle connections to the server of `offer_`.
  std::string avoided_ ABSL_GUARDED_BY(mutex_);           // The target whose direct path is not tried,
  Clock::Time avoid_until_ ABSL_GUARDED_BY(mutex_);       // and until when.
  std::string told_ ABSL_GUARDED_BY(mutex_);              // The target about which a line was logged already.
};

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_DIRECT_PATH_H_
