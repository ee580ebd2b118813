// Logged-in connections, and pipelines over several of them at the same time.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_CONNECTION_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_CONNECTION_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/store/redis/client/redis_protocol.h"
#include "server/store/redis/client/redis_socket.h"

namespace routing_replay::server {

class RedisConnection;

// A pipeline to one server.
struct RedisExchange {
  RedisConnection* connection;                // Alive, with nothing due.
  std::vector<const RedisCommand*> commands;  // They outlive the connection, or it is closed after an error.

  // Replies to the first commands, in order; fewer than commands only if `status` is an error.
  std::vector<RedisReply> replies = {};
  // UNAVAILABLE: the connection was lost, or silent for longer than the response timeout; DEADLINE_EXCEEDED, CANCELLED;
  // DATA_LOSS: it does not speak the protocol.
  absl::Status status = {};
  // Commands that were written whole; the rest were not executed.
  size_t written = 0;

  bool done() const { return !status.ok() || replies.size() == commands.size(); }
};

// All of them move at the same time, on the caller's thread. Returns when each is complete or has failed. A failed one
// leaves its connection dead, or with answers due.
void RunRedisExchanges(absl::Span<RedisExchange> exchanges, Clock::Duration response_timeout, const RedisWait& wait);

// Commands out, replies in, in the same order. After any error the connection is dead and stays so: a reply is never
// matched with another command. Thread-compatible.
class RedisConnection {
 public:
  // Connects and says HELLO 2, with user and password where the endpoint has them. `tls` (null: none) must outlive the
  // connection. UNAVAILABLE (also for a server without a free connection, or in protected mode), DEADLINE_EXCEEDED,
  // CANCELLED; PERMISSION_DENIED: the login; FAILED_PRECONDITION: the certificate, or a server that does not know
  // HELLO. No error repeats what the server said about a login.
  static absl::StatusOr<std::unique_ptr<RedisConnection>> Open(const RedisAddress& address,
                                                               const RedisEndpoint& endpoint, SSL_CTX* tls,
                                                               const RedisWait& wait);

  const RedisAddress& address() const { return address_; }
  // One exchange, all replies, errors among them.
  absl::StatusOr<std::vector<RedisReply>> Exchange(absl::Span<const RedisCommand> commands, const RedisWait& wait);
  // Open, with no reply due.
  bool usable() const { return alive_ && due_ == 0; }
  // Looks whether an idle connection is still good: open, and with nothing to read. A bad one is dead then.
  bool CheckIdle();

 private:
  friend void RunRedisExchanges(absl::Span<RedisExchange>, Clock::Duration, const RedisWait&);
  RedisConnection(RedisAddress address, std::unique_ptr<RedisSocket> socket)
      : address_(std::move(address)), socket_(std::move(socket)) {}
  absl::Status Login(const RedisEndpoint& endpoint, const RedisWait& wait);
  // Moves what can be moved now; whether anything could.
  bool Move(RedisExchange& exchange);
  // Puts further commands into the queue, as many as may be due.
  void Fill(const RedisExchange& exchange);
  absl::Status Write(RedisExchange& exchange, bool& moved);
  absl::Status Read(RedisExchange& exchange, bool& moved);

  const RedisAddress address_;
  const std::unique_ptr<RedisSocket> socket_;
  RedisReplyParser parser_;
  RedisCommandQueue queue_;
  size_t due_ = 0;  // Replies to commands that were put into the queue.
  bool alive_ = true;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_CONNECTION_H_
