// From the name of a host to a logged-in connection, plain or TLS, and pipelines over several of them at the same time.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_CONNECTION_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_CONNECTION_H_

#include <netdb.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/clock.h"
#include "server/store/redis/client/redis_endpoint.h"
#include "server/store/redis/client/redis_protocol.h"

namespace routing_replay::server {

// Ends other threads' polls. Thread-safe. Stays set.
class WakeEvent {
 public:
  WakeEvent() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  WakeEvent(const WakeEvent&) = delete;
  WakeEvent& operator=(const WakeEvent&) = delete;
  ~WakeEvent() { close(fd_); }

  void Set() { eventfd_write(fd_, 1); }
  bool is_set() const {
    pollfd event{fd_, POLLIN, 0};
    return poll(&event, 1, 0) > 0;
  }
  int fd() const { return fd_; }  // Readable while set.

 private:
  const int fd_;
};

struct RedisWait {
  Clock::Time deadline;
  // If not -1: the wait ends when this can be read.
  int interrupt_fd = -1;
};

// Until one of `sockets` has an event (then in its revents), the deadline (DEADLINE_EXCEEDED) or the interruption
// (CANCELLED). The first look never waits: what is there already is found even after the deadline.
absl::Status WaitForSockets(absl::Span<pollfd> sockets, const RedisWait& wait);

// A connected, non-blocking socket, which is the caller's to close. The addresses are tried one after the other, each
// but the last one for half of the time that is left: one that says nothing leaves some to those behind it.
// UNAVAILABLE: the last one rejects it; DEADLINE_EXCEEDED, CANCELLED.
absl::StatusOr<int> ConnectInTurn(const addrinfo* first, const RedisWait& wait);

// What is trusted and what is shown, of an endpoint that is a TLS one. TLS 1.2 or newer; the server's certificate must
// be signed by the CA and name the host that was asked for (by name or by address): nodes of a cluster that announce
// themselves by address need the address in their certificates, or cluster-preferred-endpoint-type hostname. From then
// on this process ignores SIGPIPE: OpenSSL writes to sockets that may have been closed. INVALID_ARGUMENT (kField:
// ca_file, cert_file, key_file).
absl::StatusOr<std::shared_ptr<SSL_CTX>> NewRedisTls(const RedisEndpoint& endpoint);

// Closed by the destructor. Not thread-safe.
class RedisSocket {
 public:
  // Every address of the host is tried in turn; TLS if `tls` is not null. Resolving a name may take longer than the
  // deadline says. UNAVAILABLE: nobody answers; FAILED_PRECONDITION: a certificate that cannot be trusted;
  // DEADLINE_EXCEEDED, CANCELLED.
  static absl::StatusOr<std::unique_ptr<RedisSocket>> Connect(const RedisAddress& address, SSL_CTX* tls,
                                                              const RedisWait& wait);
  ~RedisSocket();
  RedisSocket(const RedisSocket&) = delete;
  RedisSocket& operator=(const RedisSocket&) = delete;

  // Bytes moved without waiting; 0: none now. UNAVAILABLE: the connection is over. Not empty spans only.
  absl::StatusOr<size_t> Read(absl::Span<char> into);
  // A later call must begin with the bytes that this one did not take.
  absl::StatusOr<size_t> Write(absl::Span<const iovec> pieces);
  // After a Read that filled less than it was given: true if the next one may find something without a poll. TLS may
  // have taken more out of the socket than it gave.
  bool may_hold_more() const { return ssl_ != nullptr; }
  // Bytes that the next Read gives and of which a poll knows nothing: who polls while there are some may wait for what
  // is here already.
  bool holds_bytes() const { return ssl_ != nullptr && SSL_pending(ssl_) > 0; }
  // For poll: wait for bytes to read and, if told, for room to write.
  pollfd PollFor(bool to_write) const { return {fd_, static_cast<short>(POLLIN | (to_write ? POLLOUT : 0)), 0}; }

 private:
  explicit RedisSocket(int fd) : fd_(fd) {}
  absl::Status Shake(SSL_CTX* tls, const RedisAddress& address, const RedisWait& wait);
  absl::StatusOr<size_t> TlsResult(int result);

  const int fd_;
  SSL* ssl_ = nullptr;  // Its own, or null without TLS.
};

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
  // Puts the exchange's commands into the queue.
  void Push(const RedisExchange& exchange);
  // Moves what can be moved now; whether anything could.
  bool Move(RedisExchange& exchange);
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
