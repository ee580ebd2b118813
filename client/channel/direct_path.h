// Whether calls of bulk data go past gRPC, and where to.
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

// The environment variable that says what is used for Append and Read: "auto", or nothing, the direct path where there
// is one; "direct", "unix" and "shm", of it TCP, the Unix socket or shared memory alone; "grpc", never the direct path.
inline constexpr char kTransportVariable[] = "ROUTING_REPLAY_TRANSPORT";

// Of one server at a time. Thread-safe.
class DirectPath {
 public:
  // What is known of a server that may be reached without gRPC.
  struct Server {
    std::shared_ptr<grpc::Channel> channel;
    std::string authorization;
    std::string target;              // Of the channel.
    std::shared_ptr<DirectTls> tls;  // Null where it is not encrypted, and neither is the direct path.
  };

  DirectPath();

  // A connection on which a call of `method` has begun, which ends at `deadline`. Null: it is to be made over gRPC, now
  // and, where the direct path did not answer, for the next minute. Takes kPatience at most, and no more than half of
  // the time that is left for the call.
  std::unique_ptr<DirectConnection> Begin(const Server& server, const std::string& method, Clock::Time deadline);
  // Its call, of Begin with this server, ended well.
  void GiveBack(const Server& server, std::unique_ptr<DirectConnection> connection);
  // A call on it broke off: what is known of the server may not be so any more.
  void OnBroken();
  // Before a fork: nothing is left open.
  void Rest() { OnBroken(); }
  // Connects, whatever happened before, and says how, in words. NOT_FOUND saying why there is no direct path;
  // UNAVAILABLE: there is one, which cannot be reached.
  absl::StatusOr<std::string> Look(const Server& server);

  static constexpr std::chrono::seconds kPatience{1};

 private:
  enum class Transport { kAuto, kGrpc, kTcp, kUnix, kShm };
  struct Offer {
    std::string target, authorization;
    std::shared_ptr<DirectTls> tls;
    std::vector<DirectAddress> addresses;  // What comes first is tried first.
    std::string ticket;
    Clock::Time renew;
  };
  using Connection = std::unique_ptr<DirectConnection>;

  static Transport Wanted();
  std::optional<Offer> Known(const Server& server);
  bool IsAvoided(const Server& server);
  void Avoid(const Server& server, const absl::Status& why);
  // Asks the server over gRPC. NOT_FOUND saying why: it has no direct path. Errors of the call.
  absl::StatusOr<Offer> Ask(const Server& server, Clock::Time deadline) const;
  // One that is idle, or a new one that the server has greeted. UNAVAILABLE.
  absl::StatusOr<Connection> ConnectTo(const Offer& offer, Clock::Time deadline);
  Connection TakeIdle(const Offer& offer);

  const Transport transport_;
  Mutex mutex_;
  std::optional<Offer> offer_ ABSL_GUARDED_BY(mutex_);
  std::vector<Connection> idle_ ABSL_GUARDED_BY(mutex_);  // To the offer's server.
  std::string avoided_ ABSL_GUARDED_BY(mutex_);           // The target whose server has none …
  Clock::Time avoid_until_ ABSL_GUARDED_BY(mutex_);       // … until then.
  std::string told_ ABSL_GUARDED_BY(mutex_);              // The target of which a line was logged.
};

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_DIRECT_PATH_H_
