// Whether calls of bulk data go past gRPC, and where to.
#ifndef CLIENT_CHANNEL_DIRECT_PATH_H_
#define CLIENT_CHANNEL_DIRECT_PATH_H_

#include <grpcpp/channel.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/channel/direct_connection.h"
#include "client/channel/endpoint.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"

namespace routing_replay::client {

// The environment variable that says what is used for Append and Read: "auto", the direct path where there is one;
// "direct" and "unix", of it TCP or the Unix socket alone; "grpc", or nothing, never the direct path.
inline constexpr char kTransportVariable[] = "ROUTING_REPLAY_TRANSPORT";

// Of one server at a time, that of a channel. Thread-safe.
class DirectPath {
 public:
  // What is known of a server that may be reached without gRPC.
  struct Server {
    std::shared_ptr<grpc::Channel> channel;
    std::string authorization;
    std::string target;  // Of gRPC.
  };

  DirectPath();

  // A connection on which a call of `method` has begun, which ends at `deadline`. Null: it is to be made over gRPC, now
  // and, where the direct path did not answer, for the next minute. Waits for kPatience at most.
  std::unique_ptr<DirectConnection> Begin(const Server& server, const std::string& method, Clock::Time deadline);
  // Its call, of Begin with this server, ended well.
  void GiveBack(const Server& server, std::unique_ptr<DirectConnection> connection);
  // A call on it broke off: what is known of the server may not be so any more.
  void OnBroken();
  // Before a fork: nothing is left open.
  void Rest() { OnBroken(); }

  static constexpr std::chrono::seconds kPatience{1};

 private:
  enum class Transport { kAuto, kGrpc, kTcp, kUnix };
  struct Offer {
    Server server;
    std::vector<DirectAddress> addresses;  // What comes first is tried first.
    std::string ticket;
    Clock::Time renew;
  };

  std::optional<Offer> Known(const Server& server);
  // Asks the server over gRPC. Nothing: it has no direct path, or does not answer.
  std::optional<Offer> Ask(const Server& server, Clock::Time deadline);
  std::unique_ptr<DirectConnection> BeginAt(const Offer& offer, const std::string& method, Clock::Time deadline);

  const Transport transport_;
  Mutex mutex_;
  std::optional<Offer> offer_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<DirectConnection>> idle_ ABSL_GUARDED_BY(mutex_);  // To the offer's server.
  std::shared_ptr<grpc::Channel> avoided_ ABSL_GUARDED_BY(mutex_);               // Whose server has none …
  Clock::Time avoid_until_ ABSL_GUARDED_BY(mutex_);                              // … until then.
};

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_DIRECT_PATH_H_
