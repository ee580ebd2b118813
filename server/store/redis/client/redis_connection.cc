#include "server/store/redis/client/redis_connection.h"

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
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

// TCP keepalive: a dead server that did not close its connections is noticed after a minute.
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
    RR_RETURN_IF_ERROR(WaitForSockets(absl::MakeSpan(&socket, 1), wait));
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    if (error != 0) return ConnectionGone(std::strerror(error));
  }
  std::move(close_fd).Cancel();
  return fd;
}

// Returns OpenSSL's message about the last failure of this thread, and clears it.
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

// Converts the result of recv or sendmsg: the number of bytes moved, 0 if none could be moved now, or an error.
absl::StatusOr<size_t> SystemResult(ssize_t result) {
  if (result >= 0) return static_cast<size_t>(result);
  if (errno == EAGAIN || errno == EINTR) return 0;
  return ConnectionGone(std::strerror(errno));
}

constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kPiecesPerWrite = 64;
// A limit, so that one busy connection does not delay the others.
constexpr int kReadsPerMove = 16;

// Does not repeat Redis's text: an "unknown command" error contains the arguments, and so the password.
absl::Status LoginError(const RedisAddress& address, absl::string_view text) {
  const absl::string_view word = text.substr(0, text.find(' '));
  const absl::StatusCode code = StatusOfRedisError("HELLO", text).code();
  if (word == "NOPROTO" || absl::StartsWithIgnoreCase(text, "ERR unknown command")) {
    return absl::FailedPreconditionError(
        absl::StrCat(address.ToString(), ": the server rejects HELLO 2; use Redis 7 or newer, or Valkey"));
  }
  // Other errors may be temporary, for example no free connection (maxclients), or somebody is setting a password
  // (DENIED).
  return absl::Status(code == absl::StatusCode::kFailedPrecondition ? absl::StatusCode::kUnavailable : code,
                      absl::StrCat(address.ToString(), ": the server rejects the login: ",
                                   absl::StrContains(text, "max number of clients") ? "maxclients" : word));
}

}  // namespace

absl::Status WaitForSockets(absl::Span<pollfd> sockets, const RedisWait& wait) {
  std::vector<pollfd> all(sockets.begin(), sockets.end());
  all.push_back({wait.interrupt_fd, POLLIN, 0});  // poll ignores an fd of -1.
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
  // Blocks for as long as the system's resolver takes.
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
    RR_RETURN_IF_ERROR(WaitForSockets(absl::MakeSpan(&socket, 1), wait));
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

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisConnection::Open(const RedisAddress& address,
                                                                       const RedisEndpoint& endpoint, SSL_CTX* tls,
                                                                       const RedisWait& wait) {
  RR_ASSIGN_OR_RETURN(auto socket, RedisSocket::Connect(address, tls, wait));
  std::unique_ptr<RedisConnection> connection(new RedisConnection(address, std::move(socket)));
  RR_RETURN_IF_ERROR(connection->Login(endpoint, wait));
  return connection;
}

absl::Status RedisConnection::Login(const RedisEndpoint& endpoint, const RedisWait& wait) {
  RR_ASSIGN_OR_RETURN(const auto password, ReadRedisPassword(endpoint));
  RedisCommand hello({"HELLO", "2"});
  if (!password.empty()) hello.Add("AUTH").Add(endpoint.user.empty() ? "default" : endpoint.user).Add(password);
  hello.Add("SETNAME").Add("routing-replay");
  RR_ASSIGN_OR_RETURN(const auto replies, Exchange(absl::MakeConstSpan(&hello, 1), wait));
  const RedisReply& reply = replies.front();
  return reply.is_error() ? LoginError(address_, reply.text) : absl::OkStatus();
}

void RedisConnection::Push(const RedisExchange& exchange) {
  for (const RedisCommand* command : exchange.commands) queue_.Push(*command);
  due_ += exchange.commands.size();
}

bool RedisConnection::Move(RedisExchange& exchange) {
  bool moved = false;
  absl::Status status = absl::UnavailableError("the connection is closed");
  if (alive_) {
    status = Write(exchange, moved);
    // Replies that the server sent before it hung up still count.
    if (absl::Status read = Read(exchange, moved); !read.ok()) status = std::move(read);
  }
  alive_ = status.ok();
  if (!alive_) {
    exchange.status = absl::Status(status.code(), absl::StrCat(address_.ToString(), ": ", status.message()));
  }
  return moved;
}

absl::Status RedisConnection::Write(RedisExchange& exchange, bool& moved) {
  while (!queue_.empty()) {
    RR_ASSIGN_OR_RETURN(const auto written, socket_->Write(queue_.Pending(kPiecesPerWrite)));
    if (written == 0) break;
    exchange.written += queue_.Advance(written);
    moved = true;
  }
  return absl::OkStatus();
}

absl::Status RedisConnection::Read(RedisExchange& exchange, bool& moved) {
  char buffer[kReadBytes];
  // Never stop while OpenSSL has buffered bytes, because poll does not report them. They are less than one TLS record.
  for (int i = 0; i < kReadsPerMove || socket_->holds_bytes(); ++i) {
    RR_ASSIGN_OR_RETURN(const auto got, socket_->Read(absl::MakeSpan(buffer)));
    if (got == 0) break;
    moved = true;
    if (auto status = parser_.Feed({buffer, got}); !status.ok()) return status;
    while (true) {
      RR_ASSIGN_OR_RETURN(auto reply, parser_.Next());
      if (!reply.has_value()) break;
      if (due_ == 0) return absl::DataLossError("Redis sent a reply although none was expected");
      --due_;
      exchange.replies.push_back(*std::move(reply));
    }
    // If a server hangs up after its last reply, all replies are complete.
    if (due_ == 0) break;
    if (got < sizeof(buffer) && !socket_->may_hold_more()) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RedisReply>> RedisConnection::Exchange(absl::Span<const RedisCommand> commands,
                                                                  const RedisWait& wait) {
  RedisExchange exchange{.connection = this};
  for (const RedisCommand& command : commands) exchange.commands.push_back(&command);
  RunRedisExchanges(absl::MakeSpan(&exchange, 1), std::chrono::hours(1), wait);
  if (exchange.status.ok()) return std::move(exchange.replies);
  alive_ = false;
  return exchange.status;
}

bool RedisConnection::CheckIdle() {
  RedisExchange nothing{.connection = this};
  if (alive_) Move(nothing);
  if (parser_.has_rest()) alive_ = false;
  return alive_;
}

void RunRedisExchanges(absl::Span<RedisExchange> exchanges, Clock::Duration response_timeout, const RedisWait& wait) {
  std::vector<Clock::Time> silent_at(exchanges.size(), Clock::Real().Now() + response_timeout);
  for (const RedisExchange& exchange : exchanges) exchange.connection->Push(exchange);
  while (true) {
    std::vector<pollfd> sockets;
    RedisWait next = wait;
    for (size_t i = 0; i < exchanges.size(); ++i) {
      RedisExchange& exchange = exchanges[i];
      if (exchange.done()) continue;
      RedisConnection& connection = *exchange.connection;
      const Clock::Time now = Clock::Real().Now();
      if (connection.Move(exchange)) silent_at[i] = now + response_timeout;
      if (exchange.done()) continue;
      if (now >= silent_at[i]) {
        exchange.status = absl::UnavailableError(
            absl::StrCat(connection.address().ToString(), ": no answer for ",
                         std::chrono::ceil<std::chrono::milliseconds>(response_timeout).count(), " ms"));
        continue;
      }
      sockets.push_back(connection.socket_->PollFor(!connection.queue_.empty()));
      next.deadline = std::min(next.deadline, silent_at[i]);
    }
    if (sockets.empty()) return;
    const absl::Status status = WaitForSockets(absl::MakeSpan(sockets), next);
    if (status.ok() || (absl::IsDeadlineExceeded(status) && Clock::Real().Now() < wait.deadline)) continue;
    for (RedisExchange& exchange : exchanges) {
      if (!exchange.done()) exchange.status = status;
    }
    return;
  }
}

}  // namespace routing_replay::server
