#include "server/store/redis/client/redis_socket.h"

#include <openssl/err.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/redis/client/redis_connect.h"

namespace routing_replay::server {

absl::StatusOr<std::unique_ptr<RedisSocket>> RedisSocket::Connect(const RedisAddress& address, const RedisTls* tls,
                                                                  const RedisWait& wait) {
  const auto addresses = ResolveRedisAddress(address);
  const absl::StatusOr<int> fd = addresses.ok() ? ConnectInTurn(addresses->get(), wait) : addresses.status();
  absl::Status status = fd.status();
  std::unique_ptr<RedisSocket> socket;
  if (status.ok()) {
    socket.reset(new RedisSocket(*fd));
    if (tls != nullptr) status = socket->Shake(*tls, address, wait);
  }
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(address.ToString(), ": ", status.message()));
  return socket;
}

RedisSocket::~RedisSocket() {
  ssl_.reset();
  close(fd_);
}

absl::Status RedisSocket::Shake(const RedisTls& tls, const RedisAddress& address, const RedisWait& wait) {
  auto session = tls.NewSession(&fd_, address.host);
  if (!session.ok()) return session.status();
  ssl_ = *std::move(session);
  while (true) {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    if (result == 1) return absl::OkStatus();
    const int error = SSL_get_error(ssl_.get(), result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) break;
    pollfd socket{fd_, static_cast<short>(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT), 0};
    if (auto status = WaitForSockets(absl::MakeSpan(&socket, 1), wait); !status.ok()) return status;
  }
  if (const long verified = SSL_get_verify_result(ssl_.get()); verified != X509_V_OK) {
    return absl::FailedPreconditionError(
        absl::StrCat("TLS: the server's certificate: ", X509_verify_cert_error_string(verified)));
  }
  return RedisConnectionGone(absl::StrCat("TLS handshake: ", TakeTlsError()));
}

absl::StatusOr<size_t> RedisSocket::TlsResult(int result) {
  if (result > 0) return static_cast<size_t>(result);
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return 0;
    case SSL_ERROR_ZERO_RETURN:
      return RedisConnectionGone("closed by the server");
    default:
      return RedisConnectionGone(absl::StrCat("TLS: ", TakeTlsError()));
  }
}

absl::StatusOr<size_t> RedisSocket::Read(absl::Span<char> into) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    return TlsResult(SSL_read(ssl_.get(), into.data(), static_cast<int>(std::min<size_t>(into.size(), INT_MAX))));
  }
  const ssize_t got = recv(fd_, into.data(), into.size(), 0);
  if (got > 0) return static_cast<size_t>(got);
  if (got == 0) return RedisConnectionGone("closed by the server");
  if (errno == EAGAIN || errno == EINTR) return 0;
  return RedisConnectionGone(std::strerror(errno));
}

absl::StatusOr<size_t> RedisSocket::Write(absl::Span<const iovec> pieces) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    const size_t size = std::min<size_t>(pieces[0].iov_len, INT_MAX);
    return TlsResult(SSL_write(ssl_.get(), pieces[0].iov_base, static_cast<int>(size)));
  }
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<size_t>(sent);
  if (errno == EAGAIN || errno == EINTR) return 0;
  return RedisConnectionGone(std::strerror(errno));
}

bool RedisSocket::holds_bytes() const { return ssl_ != nullptr && SSL_pending(ssl_.get()) > 0; }

pollfd RedisSocket::PollFor(bool to_write) const {
  return {fd_, static_cast<short>(POLLIN | (to_write ? POLLOUT : 0)), 0};
}

}  // namespace routing_replay::server
