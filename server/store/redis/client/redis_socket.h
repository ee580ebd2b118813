// From the name of a host to a non-blocking connection, plain or TLS, and waiting for it under a deadline.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_SOCKET_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_SOCKET_H_

#include <netdb.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/clock.h"
#include "server/store/redis/client/redis_endpoint.h"

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

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_SOCKET_H_
