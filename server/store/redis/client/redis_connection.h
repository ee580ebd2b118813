// Logged-in connections: one of them, pipelines over several at the same time, and a pool that keeps them.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_CONNECTION_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_CONNECTION_H_

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/mutex.h"
#include "server/store/redis/client/redis_protocol.h"
#include "server/store/redis/client/redis_socket.h"

namespace routing_replay::server {

// Commands out, replies in, in the same order. After any error the connection is dead and stays so: a reply is never
// matched with another command. Thread-compatible.
class RedisConnection {
 public:
  // Connects and says HELLO 2, with user and password where the endpoint has them. `tls` (null: none) must outlive the
  // connection. UNAVAILABLE (also for a server without a free connection, or in protected mode), DEADLINE_EXCEEDED,
  // CANCELLED; PERMISSION_DENIED: the login; FAILED_PRECONDITION: the certificate, or a server that does not know
  // HELLO. No error repeats what the server said about a login.
  static absl::StatusOr<std::unique_ptr<RedisConnection>> Open(const RedisAddress& address,
                                                               const RedisEndpoint& endpoint, const RedisTls* tls,
                                                               size_t max_reply_bytes, const RedisWait& wait);

  const RedisAddress& address() const { return address_; }

  // Puts a command into the queue. It must live until its reply came, or the connection is no more.
  void Push(const RedisCommand& command);
  // Moves what can be moved now and adds the replies that are whole. UNAVAILABLE: the connection is lost; DATA_LOSS: it
  // does not speak the protocol. `replies` has then what came before.
  absl::Status Move(std::vector<RedisReply>& replies);
  // Replies that are due.
  size_t due() const { return pushed_ - answered_; }
  // Of the commands pushed since the beginning, how many were written whole; no other can have been executed.
  size_t written() const { return forgotten_ + queue_.commands_written(); }
  // Bytes that went either way: grows as long as the server does something.
  size_t bytes_moved() const { return bytes_moved_; }
  // For poll, until Move has something to do.
  pollfd PollFor() const { return socket_->PollFor(!queue_.empty()); }

  // All of it and all the replies, errors among them.
  absl::StatusOr<std::vector<RedisReply>> Exchange(absl::Span<const RedisCommand> commands, const RedisWait& wait);

  bool alive() const { return alive_; }
  // Looks whether an idle connection is still good: open, and with nothing to read. A bad one is dead then.
  bool CheckIdle();

 private:
  RedisConnection(RedisAddress address, std::unique_ptr<RedisSocket> socket, size_t max_reply_bytes);
  absl::Status Login(const RedisEndpoint& endpoint, const RedisWait& wait);
  absl::Status WriteQueue();
  absl::Status ReadReplies(std::vector<RedisReply>& replies);
  absl::Status TakeReplies(std::vector<RedisReply>& replies);

  const RedisAddress address_;
  const std::unique_ptr<RedisSocket> socket_;
  const std::unique_ptr<char[]> buffer_;
  RedisReplyParser parser_;
  RedisCommandQueue queue_;
  size_t forgotten_ = 0;  // Commands written that are no longer in the queue.
  size_t pushed_ = 0;
  size_t answered_ = 0;
  size_t bytes_moved_ = 0;
  bool alive_ = true;
};

// A pipeline to one server.
struct RedisExchange {
  RedisConnection* connection;                // Alive, with nothing due.
  std::vector<const RedisCommand*> commands;  // They outlive the connection, or it is closed after an error.

  // Replies to the first commands, in order; fewer than commands only if `status` is an error.
  std::vector<RedisReply> replies;
  // UNAVAILABLE: the connection was lost, or silent for longer than the response timeout; DEADLINE_EXCEEDED; DATA_LOSS.
  absl::Status status;
  // Commands that were written whole; the rest were not executed.
  size_t written = 0;
};

// All of them move at the same time, on the caller's thread. Returns when each is complete or has failed. A failed one
// leaves its connection dead, or with answers due.
void RunRedisExchanges(absl::Span<RedisExchange> exchanges, Clock::Duration response_timeout, const RedisWait& wait);

class RedisPool;

// A connection that one caller has to itself; the destructor gives it back, or closes it if it is dead or answers are
// due. Move-only.
class RedisLease {
 public:
  RedisLease(RedisPool* pool, std::unique_ptr<RedisConnection> connection)
      : pool_(pool), connection_(std::move(connection)) {}
  RedisLease(RedisLease&&) = default;
  RedisLease& operator=(RedisLease&&) = delete;
  ~RedisLease();

  RedisConnection& operator*() const { return *connection_; }
  RedisConnection* operator->() const { return connection_.get(); }

 private:
  RedisPool* pool_;
  std::unique_ptr<RedisConnection> connection_;
};

// Connections to many servers, kept for their next use. Thread-safe. Must outlive its leases.
class RedisPool {
 public:
  using Opener = std::function<absl::StatusOr<std::unique_ptr<RedisConnection>>(const RedisAddress&, Clock::Time)>;
  struct Options {
    int max_connections;  // To one server, those in use and the idle ones together.
    Clock::Duration idle_timeout;
    const Clock* clock;
  };

  RedisPool(const Options& options, Opener open) : options_(options), open_(std::move(open)) {}

  // An idle connection that is still good, or a new one; waits while the server has max_connections. Who needs several
  // servers at once takes them in order of address, or two such callers could wait for each other.
  // DEADLINE_EXCEEDED, or what `open` says.
  absl::StatusOr<RedisLease> Take(const RedisAddress& server, Clock::Time deadline);

 private:
  friend class RedisLease;
  struct Idle {
    std::unique_ptr<RedisConnection> connection;
    Clock::Time since;
  };
  struct Server {
    int open = 0;
    std::vector<Idle> idle;  // The last one was used last.
  };
  // An idle connection, or null for the right to open one.
  absl::StatusOr<std::unique_ptr<RedisConnection>> TakeIdle(const RedisAddress& server, Clock::Time deadline);
  std::vector<Idle> TakeExpired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveBack(std::unique_ptr<RedisConnection> connection);
  void Closed(const RedisAddress& server);

  const Options options_;
  const Opener open_;
  Mutex mutex_;
  CondVar freed_;
  std::map<RedisAddress, Server> servers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_CONNECTION_H_
