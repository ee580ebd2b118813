// A non-blocking connection to a Redis server, plain or TLS.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_SOCKET_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_SOCKET_H_

#include <sys/uio.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/store/redis/client/redis_endpoint.h"
#include "server/store/redis/client/redis_tls.h"
#include "server/store/redis/client/redis_wait.h"

namespace routing_replay::server {

// Closed by the destructor. Not thread-safe.
class RedisSocket {
 public:
  // Every address of the host is tried in turn, with an equal share of the time; TLS if `tls` is given. Resolving a
  // name may take longer than the deadline says. UNAVAILABLE: nobody answers; FAILED_PRECONDITION: a certificate that
  // cannot be trusted; DEADLINE_EXCEEDED, CANCELLED.
  static absl::StatusOr<std::unique_ptr<RedisSocket>> Connect(const RedisAddress& address, const RedisTls* tls,
                                                              const RedisWait& wait);
  ~RedisSocket();
  RedisSocket(const RedisSocket&) = delete;
  RedisSocket& operator=(const RedisSocket&) = delete;

  // Bytes moved without waiting; 0: none now. UNAVAILABLE: the connection is over. Not empty spans only.
  absl::StatusOr<size_t> Read(absl::Span<char> into);
  // After a Read that filled less than it was given: true if the next one may find something without a poll. TLS may
  // have taken more out of the socket than it gave.
  bool may_hold_more() const { return ssl_ != nullptr; }
  // Bytes that the next Read gives and of which a poll knows nothing: TLS has taken them out of the socket. Who polls
  // while there are some may wait for what is here already.
  bool holds_bytes() const;
  // A later call must begin with the bytes that this one did not take.
  absl::StatusOr<size_t> Write(absl::Span<const iovec> pieces);

  // For poll: wait for bytes to read and, if told, for room to write.
  pollfd PollFor(bool to_write) const;

 private:
  explicit RedisSocket(int fd) : fd_(fd) {}
  absl::Status Shake(const RedisTls& tls, const RedisAddress& address, const RedisWait& wait);
  absl::StatusOr<size_t> TlsResult(int result);

  int fd_;
  UniqueSsl ssl_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_SOCKET_H_
