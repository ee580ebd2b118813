#include "server/store/redis/client/redis_exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

class Pipeline {
 public:
  Pipeline(RedisExchange& exchange, const RedisExchangeLimits& limits, Clock::Time now)
      : exchange_(exchange), limits_(limits), written_before_(exchange.connection->written()), last_progress_(now) {}

  bool done() const { return !exchange_.status.ok() || exchange_.replies.size() == exchange_.commands.size(); }
  Clock::Time silent_at() const { return last_progress_ + limits_.response_timeout; }
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
      Fail(absl::UnavailableError(
          absl::StrCat(connection.address().ToString(), ": no answer for ",
                       std::chrono::ceil<std::chrono::milliseconds>(limits_.response_timeout).count(), " ms")));
    }
  }
  void Fail(absl::Status status) { exchange_.status = std::move(status); }

 private:
  void Fill() {
    while (pushed_ < exchange_.commands.size() && exchange_.connection->due() < limits_.in_flight) {
      exchange_.connection->Push(*exchange_.commands[pushed_++]);
    }
  }

  RedisExchange& exchange_;
  const RedisExchangeLimits& limits_;
  const size_t written_before_;
  size_t pushed_ = 0;
  Clock::Time last_progress_;
};

}  // namespace

void RunRedisExchanges(absl::Span<RedisExchange> exchanges, const RedisExchangeLimits& limits, const RedisWait& wait) {
  std::vector<Pipeline> pipelines;
  for (RedisExchange& exchange : exchanges) pipelines.emplace_back(exchange, limits, wait.clock->Now());
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

}  // namespace routing_replay::server
