#include "server/store/redis/client/redis_connection.h"

#include <algorithm>
#include <iterator>
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
  const absl::Status status = StatusOfRedisError("HELLO", text);
  if (!absl::IsFailedPrecondition(status)) {
    return absl::Status(status.code(), absl::StrCat(address.ToString(), ": login: ", word));
  }
  if (word == "NOPROTO" || absl::StartsWithIgnoreCase(text, "ERR unknown command")) {
    return absl::FailedPreconditionError(
        absl::StrCat(address.ToString(), ": rejects HELLO 2; Redis 6 or newer, or Valkey, is needed"));
  }
  if (word == "DENIED") {
    return absl::UnavailableError(
        absl::StrCat(address.ToString(), ": in protected mode: it takes no connections from other machines before it ",
                     "has a password, or protected-mode no"));
  }
  if (absl::StrContains(text, "max number of clients")) {
    return absl::UnavailableError(absl::StrCat(address.ToString(), ": has no connection left (maxclients)"));
  }
  return absl::UnavailableError(absl::StrCat(address.ToString(), ": rejects the login: ", word));
}

class Pipeline {
 public:
  Pipeline(RedisExchange& exchange, Clock::Duration response_timeout, Clock::Time now)
      : exchange_(exchange),
        response_timeout_(response_timeout),
        written_before_(exchange.connection->written()),
        last_progress_(now) {}

  bool done() const { return !exchange_.status.ok() || exchange_.replies.size() == exchange_.commands.size(); }
  Clock::Time silent_at() const { return last_progress_ + response_timeout_; }
  pollfd PollFor() const { return exchange_.connection->PollFor(); }

  void Move(Clock::Time now) {
    RedisConnection& connection = *exchange_.connection;
    const size_t replies = exchange_.replies.size();
    const size_t bytes = connection.bytes_moved();
    Fill();
    exchange_.status = connection.Move(exchange_.replies);
    // What the answers made room for: without it nothing might be due, and nothing would ever happen.
    if (exchange_.status.ok()) Fill();
    exchange_.written = connection.written() - written_before_;
    if (exchange_.replies.size() > replies || connection.bytes_moved() > bytes) last_progress_ = now;
    if (!done() && now >= silent_at()) {
      Fail(absl::UnavailableError(absl::StrCat(connection.address().ToString(), ": no answer for ",
                                               std::chrono::ceil<std::chrono::milliseconds>(response_timeout_).count(),
                                               " ms")));
    }
  }
  void Fail(absl::Status status) { exchange_.status = std::move(status); }

 private:
  void Fill() {
    while (pushed_ < exchange_.commands.size() && exchange_.connection->due() < kInFlight) {
      exchange_.connection->Push(*exchange_.commands[pushed_++]);
    }
  }

  RedisExchange& exchange_;
  const Clock::Duration response_timeout_;
  const size_t written_before_;
  size_t pushed_ = 0;
  Clock::Time last_progress_;
};

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
  if (queue_.empty() && due() == 0) {
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
      if (due() == 0) break;
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
    if (due() == 0) return absl::DataLossError("Redis sent a reply that nobody asked for");
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

void RunRedisExchanges(absl::Span<RedisExchange> exchanges, Clock::Duration response_timeout, const RedisWait& wait) {
  std::vector<Pipeline> pipelines;
  for (RedisExchange& exchange : exchanges) pipelines.emplace_back(exchange, response_timeout, wait.clock->Now());
  while (true) {
    std::vector<pollfd> sockets;
    RedisWait next = wait;
    for (Pipeline& pipeline : pipelines) {
      if (!pipeline.done()) pipeline.Move(wait.clock->Now());
      if (pipeline.done()) continue;
      sockets.push_back(pipeline.PollFor());
      next.deadline = std::min(next.deadline, pipeline.silent_at());
    }
    if (sockets.empty()) return;
    const absl::Status status = WaitForSockets(absl::MakeSpan(sockets), next);
    if (status.ok() || (absl::IsDeadlineExceeded(status) && wait.clock->Now() < wait.deadline)) continue;
    for (Pipeline& pipeline : pipelines) {
      if (!pipeline.done()) pipeline.Fail(status);
    }
    return;
  }
}

RedisLease::~RedisLease() {
  if (connection_ != nullptr) pool_->GiveBack(std::move(connection_));
}

absl::StatusOr<RedisLease> RedisPool::Take(const RedisAddress& server, Clock::Time deadline) {
  while (true) {
    auto idle = TakeIdle(server, deadline);
    if (!idle.ok()) return idle.status();
    if (*idle != nullptr) {
      const bool good = (*idle)->CheckIdle();
      RedisLease lease(this, *std::move(idle));
      if (good) return lease;
      continue;
    }
    auto opened = open_(server, deadline);
    if (opened.ok()) return RedisLease(this, *std::move(opened));
    Closed(server);
    return opened.status();
  }
}

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisPool::TakeIdle(const RedisAddress& server, Clock::Time deadline) {
  std::vector<Idle> expired;  // Closed after the lock is given back.
  const MutexLock lock(mutex_);
  expired = TakeExpired();
  while (true) {
    Server& here = servers_[server];
    if (!here.idle.empty()) {
      std::unique_ptr<RedisConnection> connection = std::move(here.idle.back().connection);
      here.idle.pop_back();
      return connection;
    }
    if (here.open < options_.max_connections) {
      ++here.open;
      return nullptr;
    }
    if (!freed_.WaitUntil(mutex_, deadline) && options_.clock->Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(server.ToString(), ": all ", options_.max_connections, " connections are in use"));
    }
  }
}

std::vector<RedisPool::Idle> RedisPool::TakeExpired() {
  std::vector<Idle> expired;
  const Clock::Time now = options_.clock->Now();
  for (auto server = servers_.begin(); server != servers_.end();) {
    std::vector<Idle>& idle = server->second.idle;
    const auto kept = std::find_if(idle.begin(), idle.end(),
                                   [&](const Idle& each) { return now - each.since < options_.idle_timeout; });
    server->second.open -= static_cast<int>(kept - idle.begin());
    std::move(idle.begin(), kept, std::back_inserter(expired));
    idle.erase(idle.begin(), kept);
    server = server->second.open == 0 ? servers_.erase(server) : std::next(server);
  }
  return expired;
}

void RedisPool::GiveBack(std::unique_ptr<RedisConnection> connection) {
  const RedisAddress server = connection->address();
  if (!connection->alive() || connection->due() > 0) {
    connection.reset();
    return Closed(server);
  }
  const MutexLock lock(mutex_);
  servers_[server].idle.push_back({std::move(connection), options_.clock->Now()});
  freed_.NotifyAll();
}

void RedisPool::Closed(const RedisAddress& server) {
  const MutexLock lock(mutex_);
  --servers_[server].open;
  freed_.NotifyAll();
}

}  // namespace routing_replay::server
