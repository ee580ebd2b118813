#include "server/store/redis/client/redis_connection.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/wire/message/byte_stream.h"
#include "proto/wire/security.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

absl::Status ConnectionGone(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("Redis connection: ", what));
}

absl::StatusOr<int> ConnectTo(const addrinfo& address, Clock::Time deadline) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) return ConnectionGone(std::strerror(errno));
  absl::Cleanup close_fd = [fd] { close(fd); };
  if (connect(fd, address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return ConnectionGone(std::strerror(errno));
    pollfd socket{fd, POLLOUT, 0};
    RR_RETURN_IF_ERROR(WaitForSockets(absl::MakeSpan(&socket, 1), deadline));
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    if (error != 0) return ConnectionGone(std::strerror(error));
  }
  std::move(close_fd).Cancel();
  return fd;
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
  // Other errors may be temporary, for example no free connection (maxclients), or protected mode (DENIED), which ends
  // once Redis has a password.
  return absl::Status(code == absl::StatusCode::kFailedPrecondition ? absl::StatusCode::kUnavailable : code,
                      absl::StrCat(address.ToString(), ": the server rejects the login: ",
                                   absl::StrContains(text, "max number of clients") ? "maxclients" : word));
}

}  // namespace

absl::Status WaitForSockets(absl::Span<pollfd> sockets, Clock::Time deadline) {
  while (true) {
    const int timeout = MsUntil(deadline);
    const int ready = poll(sockets.data(), sockets.size(), timeout);
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return absl::InternalError(absl::StrCat("poll: ", std::strerror(errno)));
    if (ready == 0 && timeout == 0) return absl::DeadlineExceededError("the deadline passed while waiting for Redis");
  }
}

absl::StatusOr<int> ConnectInTurn(const addrinfo* first, Clock::Time deadline) {
  absl::StatusOr<int> fd = ConnectionGone("the host has no address");
  for (const addrinfo* each = first; each != nullptr; each = each->ai_next) {
    const Clock::Time now = Clock::Real().Now();
    const bool halve = each->ai_next != nullptr && now < deadline;
    fd = ConnectTo(*each, halve ? now + (deadline - now) / 2 : deadline);
    if (fd.ok() || (absl::IsDeadlineExceeded(fd.status()) && Clock::Real().Now() >= deadline)) break;
  }
  return fd;
}

absl::StatusOr<TlsContext> NewRedisTls(const RedisEndpoint& endpoint) {
  struct Part {
    const char* field;
    const std::string& file;
    const char* in_error;  // How an error of ClientTlsContext begins.
    std::string text = {};
  };
  Part parts[] = {{"cert_file", endpoint.cert_file, "cert: "},
                  {"key_file", endpoint.key_file, "key: "},
                  {"ca_file", endpoint.ca_file, "cacert: "}};
  for (Part& part : parts) {
    if (part.file.empty()) continue;
    const auto read = ChangingFile(part.file).Look();
    if (!read.ok()) return InvalidEndpoint(part.field, read.status().message());
    // An empty text would mean: trust the system's authorities, or show no certificate.
    if ((*read)->empty()) return InvalidEndpoint(part.field, absl::StrCat(part.file, ": is empty"));
    part.text = **read;
  }
  absl::StatusOr<TlsContext> tls = ClientTlsContext(parts[0].text, parts[1].text, parts[2].text);
  absl::string_view why = tls.status().message();
  for (const Part& part : parts) {
    if (absl::ConsumePrefix(&why, part.in_error)) {
      return InvalidEndpoint(part.field, absl::StrCat(part.file, ": ", why));
    }
  }
  return tls;
}

RedisConnection::RedisConnection(const RedisAddress& address, const TlsContext& tls, int fd) : address_(address) {
  PrepareTcp(fd);
  if (tls == nullptr) {
    stream_ = std::make_unique<SocketStream>(fd);
    return;
  }
  stream_ = TlsStream::Connect(tls, fd, address.host);
}

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisConnection::Open(const RedisAddress& address,
                                                                       const RedisEndpoint& endpoint,
                                                                       const TlsContext& tls, Clock::Time deadline) {
  const addrinfo hints{.ai_flags = AI_NUMERICSERV, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  // Blocks for as long as the system's resolver takes.
  const int unknown = getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  const absl::Cleanup free_addresses = [&] {
    if (found != nullptr) freeaddrinfo(found);
  };
  const absl::StatusOr<int> fd = unknown != 0 ? ConnectionGone(gai_strerror(unknown)) : ConnectInTurn(found, deadline);
  if (!fd.ok()) {
    return absl::Status(fd.status().code(), absl::StrCat(address.ToString(), ": ", fd.status().message()));
  }
  std::unique_ptr<RedisConnection> connection(new RedisConnection(address, tls, *fd));
  RR_RETURN_IF_ERROR(connection->Login(endpoint, deadline));
  return connection;
}

absl::Status RedisConnection::Login(const RedisEndpoint& endpoint, Clock::Time deadline) {
  RR_ASSIGN_OR_RETURN(const auto password, ReadRedisPassword(endpoint));
  RedisCommand hello({"HELLO", "2"});
  if (!password.empty()) hello.Add("AUTH").Add(endpoint.user.empty() ? "default" : endpoint.user).Add(password);
  hello.Add("SETNAME").Add("routing-replay");
  RR_ASSIGN_OR_RETURN(const auto replies, Exchange(absl::MakeConstSpan(&hello, 1), deadline));
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
    status = Write(moved);
    // Reads after a failed write, too: what the server sent before it hung up still counts (not with TLS).
    if (absl::Status read = Read(exchange, moved); !read.ok()) status = std::move(read);
  }
  alive_ = status.ok();
  if (!alive_) exchange.status = absl::Status(status.code(), absl::StrCat(address_.ToString(), ": ", status.message()));
  return moved;
}

absl::Status RedisConnection::Write(bool& moved) {
  while (!queue_.empty()) {
    RR_ASSIGN_OR_RETURN(const auto written, stream_->Write(queue_.Pending(kPiecesPerWrite)));
    if (written == 0) break;
    queue_.Advance(written);
    moved = true;
  }
  return absl::OkStatus();
}

absl::Status RedisConnection::Read(RedisExchange& exchange, bool& moved) {
  char buffer[kReadBytes];
  const iovec space{buffer, sizeof(buffer)};
  for (int i = 0; i < kReadsPerMove; ++i) {
    RR_ASSIGN_OR_RETURN(const auto got, stream_->Read({&space, 1}));
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
    // Stops here: if the server hangs up after its last reply, that is no error of this exchange.
    if (due_ == 0) break;
    if (got < sizeof(buffer)) break;
  }
  return absl::OkStatus();
}

pollfd RedisConnection::WaitsFor() const {
  const uint32_t events = stream_->read_events() | (queue_.empty() ? 0 : stream_->write_events());
  return {stream_->fd(), static_cast<short>(events), 0};
}

absl::StatusOr<std::vector<RedisReply>> RedisConnection::Exchange(absl::Span<const RedisCommand> commands,
                                                                  Clock::Time deadline) {
  RedisExchange exchange{.connection = this};
  for (const RedisCommand& command : commands) exchange.commands.push_back(&command);
  RunRedisExchanges(absl::MakeSpan(&exchange, 1), std::chrono::hours(1), deadline);
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

void RunRedisExchanges(absl::Span<RedisExchange> exchanges, Clock::Duration response_timeout, Clock::Time deadline) {
  std::vector<Clock::Time> silent_at(exchanges.size(), Clock::Real().Now() + response_timeout);
  for (const RedisExchange& exchange : exchanges) exchange.connection->Push(exchange);
  while (true) {
    std::vector<pollfd> sockets;
    Clock::Time next = deadline;
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
      sockets.push_back(connection.WaitsFor());
      // Poll does not report bytes that TLS has already taken from the socket.
      next = std::min(next, connection.stream_->HasBytes() ? now : silent_at[i]);
    }
    if (sockets.empty()) return;
    const absl::Status status = WaitForSockets(absl::MakeSpan(sockets), next);
    if (status.ok() || (absl::IsDeadlineExceeded(status) && Clock::Real().Now() < deadline)) continue;
    for (RedisExchange& exchange : exchanges) {
      if (!exchange.done()) exchange.status = status;
    }
    return;
  }
}

}  // namespace routing_replay::server
