#include "server/store/redis/client/redis_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

// A server that has gone without a word is known after a minute.
constexpr int kKeepIdleSeconds = 30, kKeepIntervalSeconds = 10, kKeepProbes = 3;

int PollTimeout(Clock::Time deadline) {
  const int64_t left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::Real().Now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX));
}

absl::Status ConnectionGone(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("Redis connection: ", what));
}

void SetOptions(int fd) {
  const auto set = [fd](int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
}

absl::StatusOr<int> ConnectTo(const addrinfo& address, const RedisWait& wait) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) return ConnectionGone(std::strerror(errno));
  absl::Cleanup close_fd = [fd] { close(fd); };
  SetOptions(fd);
  if (connect(fd, address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return ConnectionGone(std::strerror(errno));
    pollfd socket{fd, POLLOUT, 0};
    if (auto status = WaitForSockets(absl::MakeSpan(&socket, 1), wait); !status.ok()) return status;
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    if (error != 0) return ConnectionGone(std::strerror(error));
  }
  std::move(close_fd).Cancel();
  return fd;
}

// What OpenSSL has to say about the last failure of this thread, and clears it.
std::string TakeTlsError() {
  char text[256] = "unknown TLS error";
  if (const unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return text;
}

absl::Status Unusable(absl::string_view field, const std::string& file) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("redis store: ", field, ": ", file, ": ", TakeTlsError()),
                   {.reason = Reason::kField, .field = std::string(field)});
}

bool NamePeer(SSL* ssl, const std::string& host) {
  in6_addr address;
  if (inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, host.c_str(), &address) == 1) {
    return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1;
  }
  SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  return SSL_set_tlsext_host_name(ssl, host.c_str()) == 1 && SSL_set1_host(ssl, host.c_str()) == 1;
}

// Of recv, or of sendmsg.
absl::StatusOr<size_t> SystemResult(ssize_t result) {
  if (result >= 0) return static_cast<size_t>(result);
  if (errno == EAGAIN || errno == EINTR) return 0;
  return ConnectionGone(std::strerror(errno));
}

}  // namespace

absl::Status WaitForSockets(absl::Span<pollfd> sockets, const RedisWait& wait) {
  std::vector<pollfd> all(sockets.begin(), sockets.end());
  all.push_back({wait.interrupt_fd, POLLIN, 0});  // poll passes over an fd of -1.
  while (true) {
    const int timeout = PollTimeout(wait.deadline);
    const int ready = poll(all.data(), all.size(), timeout);
    if (ready > 0) break;
    if (ready < 0 && errno != EINTR) return absl::InternalError(absl::StrCat("poll: ", std::strerror(errno)));
    if (ready == 0 && timeout == 0) return absl::DeadlineExceededError("the deadline passed while waiting for Redis");
  }
  if (all.back().revents != 0) return absl::CancelledError("interrupted while waiting for Redis");
  std::copy(all.begin(), all.end() - 1, sockets.begin());
  return absl::OkStatus();
}

absl::StatusOr<int> ConnectInTurn(const addrinfo* first, const RedisWait& wait) {
  absl::StatusOr<int> fd = ConnectionGone("the host has no address");
  for (const addrinfo* each = first; each != nullptr; each = each->ai_next) {
    RedisWait part = wait;
    const Clock::Time now = Clock::Real().Now();
    if (each->ai_next != nullptr && now < wait.deadline) part.deadline = now + (wait.deadline - now) / 2;
    fd = ConnectTo(*each, part);
    if (fd.ok() || absl::IsCancelled(fd.status())) break;
    if (absl::IsDeadlineExceeded(fd.status()) && Clock::Real().Now() >= wait.deadline) break;
  }
  return fd;
}

absl::StatusOr<std::shared_ptr<SSL_CTX>> NewRedisTls(const RedisEndpoint& endpoint) {
  std::signal(SIGPIPE, SIG_IGN);
  ERR_clear_error();
  const std::shared_ptr<SSL_CTX> tls(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  SSL_CTX* context = tls.get();
  if (context == nullptr) return absl::InternalError(absl::StrCat("TLS: ", TakeTlsError()));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (endpoint.ca_file.empty()) {
    if (SSL_CTX_set_default_verify_paths(context) != 1) return Unusable("ca_file", "(the system's)");
  } else if (SSL_CTX_load_verify_locations(context, endpoint.ca_file.c_str(), nullptr) != 1) {
    return Unusable("ca_file", endpoint.ca_file);
  }
  if (!endpoint.cert_file.empty()) {
    if (SSL_CTX_use_certificate_chain_file(context, endpoint.cert_file.c_str()) != 1) {
      return Unusable("cert_file", endpoint.cert_file);
    }
    if (SSL_CTX_use_PrivateKey_file(context, endpoint.key_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(context) != 1) {
      return Unusable("key_file", endpoint.key_file);
    }
  }
  return tls;
}

absl::StatusOr<std::unique_ptr<RedisSocket>> RedisSocket::Connect(const RedisAddress& address, SSL_CTX* tls,
                                                                  const RedisWait& wait) {
  const addrinfo hints{.ai_flags = AI_NUMERICSERV, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  // Keeps the thread for as long as the system's resolver takes.
  const int unknown = getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  const absl::Cleanup free_addresses = [&] {
    if (found != nullptr) freeaddrinfo(found);
  };
  const absl::StatusOr<int> fd = unknown != 0 ? ConnectionGone(gai_strerror(unknown)) : ConnectInTurn(found, wait);
  absl::Status status = fd.status();
  std::unique_ptr<RedisSocket> socket;
  if (status.ok()) {
    socket.reset(new RedisSocket(*fd));
    if (tls != nullptr) status = socket->Shake(tls, address, wait);
  }
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(address.ToString(), ": ", status.message()));
  return socket;
}

RedisSocket::~RedisSocket() {
  SSL_free(ssl_);
  close(fd_);
}

absl::Status RedisSocket::Shake(SSL_CTX* tls, const RedisAddress& address, const RedisWait& wait) {
  ERR_clear_error();
  ssl_ = SSL_new(tls);
  if (ssl_ == nullptr || SSL_set_fd(ssl_, fd_) != 1 || !NamePeer(ssl_, address.host)) {
    return absl::InternalError(absl::StrCat("TLS: ", TakeTlsError()));
  }
  SSL_set_connect_state(ssl_);
  while (true) {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_);
    if (result == 1) return absl::OkStatus();
    const int error = SSL_get_error(ssl_, result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) break;
    pollfd socket{fd_, static_cast<short>(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT), 0};
    if (auto status = WaitForSockets(absl::MakeSpan(&socket, 1), wait); !status.ok()) return status;
  }
  if (const long verified = SSL_get_verify_result(ssl_); verified != X509_V_OK) {
    return absl::FailedPreconditionError(
        absl::StrCat("TLS: the server's certificate: ", X509_verify_cert_error_string(verified)));
  }
  return ConnectionGone(absl::StrCat("TLS handshake: ", TakeTlsError()));
}

absl::StatusOr<size_t> RedisSocket::TlsResult(int result) {
  if (result > 0) return static_cast<size_t>(result);
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return 0;
    case SSL_ERROR_ZERO_RETURN:
      return ConnectionGone("closed by the server");
    default:
      return ConnectionGone(absl::StrCat("TLS: ", TakeTlsError()));
  }
}

absl::StatusOr<size_t> RedisSocket::Read(absl::Span<char> into) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    return TlsResult(SSL_read(ssl_, into.data(), static_cast<int>(std::min<size_t>(into.size(), INT_MAX))));
  }
  const ssize_t got = recv(fd_, into.data(), into.size(), 0);
  return got == 0 ? ConnectionGone("closed by the server") : SystemResult(got);
}

absl::StatusOr<size_t> RedisSocket::Write(absl::Span<const iovec> pieces) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    const size_t size = std::min<size_t>(pieces[0].iov_len, INT_MAX);
    return TlsResult(SSL_write(ssl_, pieces[0].iov_base, static_cast<int>(size)));
  }
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  return SystemResult(sendmsg(fd_, &message, MSG_NOSIGNAL));
}

}  // namespace routing_replay::server
