// Connects to Redis, plain or with TLS, logs in, and runs pipelines over several connections at the same time.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_CONNECTION_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_CONNECTION_H_

#include <netdb.h>
#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/clock.h"
#include "proto/wire/tls/tls_stream.h"
#include "server/store/redis/client/redis_protocol.h"

namespace routing_replay::server {

// Waits until one of `sockets` has an event (then in its revents) or the deadline passes (DEADLINE_EXCEEDED). Finds
// events that are already there even after the deadline.
absl::Status WaitForSockets(absl::Span<pollfd> sockets, Clock::Time deadline);

// A connected, non-blocking socket, which the caller must close. Tries the addresses one after the other. Each but the
// last gets half of the remaining time, so that a silent one leaves time for the others. UNAVAILABLE: the last address
// failed; DEADLINE_EXCEEDED.
absl::StatusOr<int> ConnectInTurn(const addrinfo* first, Clock::Time deadline);

// The TLS settings of an endpoint: trusted authorities and the client's certificate. A server's certificate must be
// signed by one of these authorities and contain the host to which the client connects, as a name or an address. So if
// cluster nodes announce their addresses, their certificates must contain these; with cluster-preferred-endpoint-type
// hostname they announce names instead. INVALID_ARGUMENT (kField: ca_file, cert_file, key_file).
absl::StatusOr<TlsContext> NewRedisTls(const RedisEndpoint& endpoint);

class RedisConnection;

// A pipeline to one server.
struct RedisExchange {
  RedisConnection* connection;  // Must be usable(), and must outlive the exchange.
  // The commands must live until the exchange is done. After an error the connection may still refer to their bytes, so
  // it must be closed before they are freed.
  std::vector<const RedisCommand*> commands;

  // Replies to the first commands, in order; fewer than commands only if `status` is an error.
  std::vector<RedisReply> replies = {};
  // UNAVAILABLE: the connection was lost, or silent for longer than the response timeout; DEADLINE_EXCEEDED;
  // DATA_LOSS: the server broke the protocol.
  absl::Status status = {};

  bool done() const { return !status.ok() || replies.size() == commands.size(); }
};

// Runs all exchanges at the same time, on the caller's thread. Returns when each is complete or has failed. A failed
// exchange leaves its connection dead, or with replies due.
void RunRedisExchanges(absl::Span<RedisExchange> exchanges, Clock::Duration response_timeout, Clock::Time deadline);

// Sends commands and receives replies in the same order. Close a connection that is not usable() after an exchange: a
// late reply would be matched with the wrong command. Thread-compatible.
class RedisConnection {
 public:
  // Connects and sends HELLO 2, with user and password if the endpoint has them. Tries every address of the host in
  // turn; resolving a name may exceed the deadline. `tls`: null for plain TCP. UNAVAILABLE (also for a server without a
  // free connection, or in protected mode), DEADLINE_EXCEEDED; PERMISSION_DENIED: the login failed;
  // FAILED_PRECONDITION: the server does not know HELLO. No error repeats the server's text about a login.
  static absl::StatusOr<std::unique_ptr<RedisConnection>> Open(const RedisAddress& address,
                                                               const RedisEndpoint& endpoint, const TlsContext& tls,
                                                               Clock::Time deadline);

  const RedisAddress& address() const { return address_; }
  // Sends the commands. Returns a reply for each of them; it may be an error reply.
  absl::StatusOr<std::vector<RedisReply>> Exchange(absl::Span<const RedisCommand> commands, Clock::Time deadline);
  // True if the connection is open and no reply is due.
  bool usable() const { return alive_ && due_ == 0; }
  // Checks whether an idle connection still works: open, and with nothing to read. If not, it is dead afterwards.
  bool CheckIdle();

 private:
  friend void RunRedisExchanges(absl::Span<RedisExchange>, Clock::Duration, Clock::Time);
  RedisConnection(const RedisAddress& address, const TlsContext& tls, int fd);
  absl::Status Login(const RedisEndpoint& endpoint, Clock::Time deadline);
  // Adds the exchange's commands to the queue.
  void Push(const RedisExchange& exchange);
  // Reads and writes what is possible now; an error goes to exchange.status. Returns false if no byte moved.
  bool Move(RedisExchange& exchange);
  absl::Status Write(bool& moved);
  absl::Status Read(RedisExchange& exchange, bool& moved);
  // For poll: wait for bytes to read and, if commands are queued, for room to write.
  pollfd WaitsFor() const;

  const RedisAddress address_;
  std::unique_ptr<ByteStream> stream_;
  RedisReplyParser parser_;
  RedisCommandQueue queue_;
  size_t due_ = 0;  // Replies still expected, for commands that were sent or are in queue_.
  bool alive_ = true;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_CONNECTION_H_
