#include "server/store/redis/client/redis_connection.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

// Commands of one pipeline whose answers are due at the same time. A server keeps all answers that were not fetched in
// its memory, so that this bounds it.
constexpr size_t kInFlight = 32;
constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kPiecesPerWrite = 64;
// So that one busy connection among several does not keep the others waiting.
constexpr int kReadsPerMove = 16;

// Without the text: "unknown command" repeats the arguments, and so the password.
absl::Status LoginError(const RedisAddress& address, absl::string_view text) {
  const absl::string_view word = text.substr(0, text.find(' '));
  const absl::StatusCode code = StatusOfRedisError("HELLO", text).code();
  if (word == "NOPROTO" || absl::StartsWithIgnoreCase(text, "ERR unknown command")) {
    return absl::FailedPreconditionError(
        absl::StrCat(address.ToString(), ": rejects HELLO 2; Redis 6 or newer, or Valkey, is needed"));
  }
  // The others pass, as when it has no connection left (maxclients), or when somebody sets a password (DENIED).
  return absl::Status(code == absl::StatusCode::kFailedPrecondition ? absl::StatusCode::kUnavailable : code,
                      absl::StrCat(address.ToString(), ": rejects the login: ",
                                   absl::StrContains(text, "max number of clients") ? "maxclients" : word));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisConnection::Open(const RedisAddress& address,
                                                                       const RedisEndpoint& endpoint, SSL_CTX* tls,
                                                                       const RedisWait& wait) {
  auto socket = RedisSocket::Connect(address, tls, wait);
  if (!socket.ok()) return socket.status();
  std::unique_ptr<RedisConnection> connection(new RedisConnection(address, *std::move(socket)));
  if (auto status = connection->Login(endpoint, wait); !status.ok()) return status;
  return connection;
}

absl::Status RedisConnection::Login(const RedisEndpoint& endpoint, const RedisWait& wait) {
  const auto password = ReadRedisPassword(endpoint);
  if (!password.ok()) return password.status();
  RedisCommand hello({"HELLO", "2"});
  if (!password->empty()) hello.Add("AUTH").Add(endpoint.user.empty() ? "default" : endpoint.user).Add(*password);
  hello.Add("SETNAME").Add("routing-replay");
  const auto replies = Exchange(absl::MakeConstSpan(&hello, 1), wait);
  if (!replies.ok()) return replies.status();
  const RedisReply& reply = replies->front();
  return reply.is_error() ? LoginError(address_, reply.text) : absl::OkStatus();
}

void RedisConnection::Fill(const RedisExchange& exchange) {
  while (due_ < kInFlight && exchange.replies.size() + due_ < exchange.commands.size()) {
    queue_.Push(*exchange.commands[exchange.replies.size() + due_++]);
  }
}

bool RedisConnection::Move(RedisExchange& exchange) {
  bool moved = false;
  absl::Status status;
  if (alive_) {
    Fill(exchange);
    status = Write(exchange, moved);
    // What the server said before it hung up still counts.
    if (absl::Status read = Read(exchange, moved); !read.ok()) status = std::move(read);
  } else {
    status = absl::UnavailableError("the connection is closed");
  }
  alive_ = status.ok();
  if (!alive_) {
    exchange.status = absl::Status(status.code(), absl::StrCat(address_.ToString(), ": ", status.message()));
  }
  // What the answers made room for: without it nothing might be due, and nothing would ever happen.
  if (alive_) Fill(exchange);
  return moved;
}

absl::Status RedisConnection::Write(RedisExchange& exchange, bool& moved) {
  while (!queue_.empty()) {
    const auto written = socket_->Write(queue_.Pending(kPiecesPerWrite));
    if (!written.ok()) return written.status();
    if (*written == 0) break;
    exchange.written += queue_.Advance(*written);
    moved = true;
  }
  return absl::OkStatus();
}

absl::Status RedisConnection::Read(RedisExchange& exchange, bool& moved) {
  char buffer[kReadBytes];
  // No move ends with bytes that a poll does not see; it is less than one TLS record that is read on for.
  for (int i = 0; i < kReadsPerMove || socket_->holds_bytes(); ++i) {
    const absl::Span<char> direct = parser_.Direct();
    const absl::Span<char> into = direct.empty() ? absl::MakeSpan(buffer) : direct;
    const auto got = socket_->Read(into);
    if (!got.ok()) return got.status();
    if (*got == 0) break;
    moved = true;
    if (!direct.empty()) {
      parser_.Filled(*got);
    } else {
      if (auto status = parser_.Feed({buffer, *got}); !status.ok()) return status;
      while (true) {
        auto reply = parser_.Next();
        if (!reply.ok()) return reply.status();
        if (!reply->has_value()) break;
        if (due_ == 0) return absl::DataLossError("Redis sent a reply that nobody asked for");
        --due_;
        exchange.replies.push_back(**std::move(reply));
      }
      // A server that hangs up after its last answer has answered.
      if (due_ == 0) break;
    }
    if (*got < into.size() && !socket_->may_hold_more()) break;
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
