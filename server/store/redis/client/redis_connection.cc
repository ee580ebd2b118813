#include "server/store/redis/client/redis_connection.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/store/redis/client/redis_error.h"

namespace routing_replay::server {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kPiecesPerWrite = 64;
// So that one busy connection among several does not keep the others waiting.
constexpr int kReadsPerMove = 16;

// Without the text: "unknown command" repeats the arguments, and so the password.
absl::Status LoginError(const RedisAddress& address, absl::string_view text) {
  const absl::string_view word = text.substr(0, text.find(' '));
  const absl::Status status = StatusOfRedisError("HELLO", text);
  if (!absl::IsFailedPrecondition(status)) {
    return absl::Status(status.code(), absl::StrCat(address.ToString(), ": login: ", word));
  }
  if (word == "NOPROTO" || absl::StartsWithIgnoreCase(text, "ERR unknown command")) {
    return absl::FailedPreconditionError(
        absl::StrCat(address.ToString(), ": refuses HELLO 2; Redis 6 or newer, or Valkey, is needed"));
  }
  if (word == "DENIED") {
    return absl::UnavailableError(
        absl::StrCat(address.ToString(), ": in protected mode: it takes no connections from other machines before it ",
                     "has a password, or protected-mode no"));
  }
  if (absl::StrContains(text, "max number of clients")) {
    return absl::UnavailableError(absl::StrCat(address.ToString(), ": has no connection left (maxclients)"));
  }
  return absl::UnavailableError(absl::StrCat(address.ToString(), ": refuses the login: ", word));
}

}  // namespace

RedisConnection::RedisConnection(RedisAddress address, std::unique_ptr<RedisSocket> socket, size_t max_reply_bytes)
    : address_(std::move(address)),
      socket_(std::move(socket)),
      buffer_(std::make_unique<char[]>(kReadBytes)),
      parser_(max_reply_bytes) {}

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisConnection::Open(const RedisAddress& address,
                                                                       const RedisEndpoint& endpoint,
                                                                       const RedisTls* tls, size_t max_reply_bytes,
                                                                       const RedisWait& wait) {
  auto socket = RedisSocket::Connect(address, tls, wait);
  if (!socket.ok()) return socket.status();
  std::unique_ptr<RedisConnection> connection(new RedisConnection(address, *std::move(socket), max_reply_bytes));
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

void RedisConnection::Push(const RedisCommand& command) {
  if (queue_.empty() && (pushes_ || due() == 0)) {
    forgotten_ += queue_.commands_written();
    queue_ = RedisCommandQueue();
  }
  queue_.Push(command);
  ++pushed_;
}

absl::Status RedisConnection::Move(std::vector<RedisReply>& replies) {
  if (!alive_) return absl::UnavailableError(absl::StrCat(address_.ToString(), ": the connection is closed"));
  absl::Status status = WriteQueue();
  // What the server said before it hung up still counts.
  if (absl::Status read = ReadReplies(replies); !read.ok()) status = std::move(read);
  alive_ = status.ok();
  return alive_ ? status : absl::Status(status.code(), absl::StrCat(address_.ToString(), ": ", status.message()));
}

absl::Status RedisConnection::WriteQueue() {
  while (!queue_.empty()) {
    const std::vector<iovec> pieces = queue_.Pending(kPiecesPerWrite);
    const auto written = socket_->Write(pieces);
    if (!written.ok()) return written.status();
    if (*written == 0) break;
    queue_.Advance(*written);
    bytes_moved_ += *written;
  }
  return absl::OkStatus();
}

absl::Status RedisConnection::ReadReplies(std::vector<RedisReply>& replies) {
  // No move ends with bytes that a poll does not see; it is less than one TLS record that is read on for.
  for (int i = 0; i < kReadsPerMove || socket_->holds_bytes(); ++i) {
    const absl::Span<char> direct = parser_.Direct();
    const absl::Span<char> into = direct.empty() ? absl::MakeSpan(buffer_.get(), kReadBytes) : direct;
    const auto got = socket_->Read(into);
    if (!got.ok()) return got.status();
    if (*got == 0) break;
    bytes_moved_ += *got;
    if (!direct.empty()) {
      parser_.Filled(*got);
    } else {
      if (auto status = parser_.Feed({buffer_.get(), *got}); !status.ok()) return status;
      if (auto status = TakeReplies(replies); !status.ok()) return status;
      // A server that hangs up after its last answer has answered.
      if (!pushes_ && due() == 0) break;
    }
    if (*got < into.size() && !socket_->may_hold_more()) break;
  }
  return absl::OkStatus();
}

absl::Status RedisConnection::TakeReplies(std::vector<RedisReply>& replies) {
  while (true) {
    auto reply = parser_.Next();
    if (!reply.ok()) return reply.status();
    if (!reply->has_value()) return absl::OkStatus();
    if (!pushes_ && due() == 0) return absl::DataLossError("Redis sent a reply that nobody asked for");
    ++answered_;
    replies.push_back(**std::move(reply));
  }
}

absl::StatusOr<std::vector<RedisReply>> RedisConnection::Exchange(absl::Span<const RedisCommand> commands,
                                                                  const RedisWait& wait) {
  for (const RedisCommand& command : commands) Push(command);
  std::vector<RedisReply> replies;
  while (true) {
    if (auto status = Move(replies); !status.ok()) return status;
    if (due() == 0) return replies;
    pollfd socket = PollFor();
    if (auto status = WaitForSockets(absl::MakeSpan(&socket, 1), wait); !status.ok()) {
      alive_ = false;
      return status;
    }
  }
}

bool RedisConnection::CheckIdle() {
  std::vector<RedisReply> replies;
  if (due() > 0 || parser_.has_rest() || !Move(replies).ok()) alive_ = false;
  return alive_;
}

}  // namespace routing_replay::server
