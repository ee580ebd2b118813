#include "tests/bench/common/tcp_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace routing_replay::bench {
namespace {

absl::Status SocketError(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", errno == 0 ? "closed" : std::strerror(errno)));
}

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void SetNoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

TcpSocket::~TcpSocket() {
  if (fd_ >= 0) close(fd_);
}

TcpSocket& TcpSocket::operator=(TcpSocket&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(tls_, other.tls_);
  return *this;
}

absl::StatusOr<TcpSocket> TcpSocket::Connect(int port) {
  TcpSocket connected(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(port);
  if (connect(connected.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return SocketError("connect");
  }
  SetNoDelay(connected.fd_);
  return connected;
}

absl::Status TcpSocket::StartTls(const TlsFiles& files) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_method()), SSL_CTX_free);
  const bool is_server = !files.certificate.empty();
  if (is_server && (SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()) != 1 ||
                    SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot use ", files.certificate));
  }
  tls_.reset(SSL_new(context.get()));
  SSL_set_fd(tls_.get(), fd_);
  if ((is_server ? SSL_accept(tls_.get()) : SSL_connect(tls_.get())) == 1) return absl::OkStatus();
  return absl::UnavailableError("the TLS handshake failed");
}

absl::Status TcpSocket::Send(absl::Span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = tls_ ? SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size()))
                              : send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return SocketError("send");
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return absl::OkStatus();
}

absl::Status TcpSocket::SendAll(absl::Span<const absl::Span<const uint8_t>> pieces) {
  std::vector<iovec> left;
  for (const absl::Span<const uint8_t> piece : pieces) {
    left.push_back({const_cast<uint8_t*>(piece.data()), piece.size()});
  }
  for (size_t first = 0; first < left.size();) {
    msghdr message{};
    message.msg_iov = left.data() + first;
    message.msg_iovlen = std::min<size_t>(left.size() - first, IOV_MAX);
    const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return SocketError("send");
    auto done = static_cast<size_t>(sent);
    while (first < left.size() && done >= left[first].iov_len) done -= left[first++].iov_len;
    if (first == left.size()) break;
    left[first].iov_base = static_cast<uint8_t*>(left[first].iov_base) + done;
    left[first].iov_len -= done;
  }
  return absl::OkStatus();
}

absl::Status TcpSocket::Receive(absl::Span<uint8_t> bytes, size_t piece) {
  while (!bytes.empty()) {
    errno = 0;
    const size_t size = std::min(bytes.size(), piece);
    const ssize_t received =
        tls_ ? SSL_read(tls_.get(), bytes.data(), static_cast<int>(size)) : recv(fd_, bytes.data(), size, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return SocketError("recv");
    bytes.remove_prefix(static_cast<size_t>(received));
  }
  return absl::OkStatus();
}

absl::StatusOr<TcpListener> TcpListener::Listen() {
  TcpListener listener;
  listener.socket_ = TcpSocket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int fd = listener.socket_.fd_;
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd, generic, size) != 0 || listen(fd, SOMAXCONN) != 0 || getsockname(fd, generic, &size) != 0) {
    return SocketError("listen");
  }
  listener.port_ = ntohs(address.sin_port);
  return listener;
}

absl::StatusOr<TcpSocket> TcpListener::Accept() {
  TcpSocket accepted(accept4(socket_.fd_, nullptr, nullptr, SOCK_CLOEXEC));
  if (!accepted.open()) return SocketError("accept");
  SetNoDelay(accepted.fd_);
  return accepted;
}

}  // namespace routing_replay::bench
