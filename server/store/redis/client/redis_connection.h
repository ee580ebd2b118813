// One logged-in connection: commands out, replies in, in the same order.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_CONNECTION_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_CONNECTION_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/store/redis/client/redis_command.h"
#include "server/store/redis/client/redis_reply_parser.h"
#include "server/store/redis/client/redis_socket.h"

namespace routing_replay::server {

// After any error the connection is dead and stays so: a reply is never matched with another command.
// Thread-compatible.
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
  // For a subscriber: replies are no longer one per command; due() has no meaning.
  void ExpectPushes() { pushes_ = true; }

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
  bool pushes_ = false;
  bool alive_ = true;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_CONNECTION_H_
