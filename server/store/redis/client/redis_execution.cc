#include "server/store/redis/client/redis_execution.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

// A slot that is sent to and fro by two servers that do not agree yet.
constexpr int kRoundsWithoutPause = 8;
constexpr Backoff::Options kPauses = {.initial = std::chrono::milliseconds(5),
                                      .maximum = std::chrono::milliseconds(250)};

const RedisCommand& Asking() {
  static const RedisCommand asking({"ASKING"});
  return asking;
}

}  // namespace

RedisExecution::RedisExecution(RedisTopology& topology, absl::Span<const RedisRequest> requests, Clock::Time deadline)
    : topology_(topology),
      requests_(requests),
      deadline_(deadline),
      clock_(*topology.options().clock),
      results_(requests.size()),
      left_(requests.size()) {
  for (const RedisRequest& request : requests) states_.push_back({.slot = RedisSlotOf(request.key)});
}

std::vector<RedisResult> RedisExecution::Run() && {
  while (left_ > 0 && clock_.Now() < deadline_ && !topology_.abandoned()) {
    pause_ = refresh_ = false;
    Round();
    if (left_ > 0) Pause();
  }
  GiveUp();
  return std::move(results_);
}

void RedisExecution::Round() {
  view_ = topology_.view();
  std::map<RedisAddress, Batch> batches = Route();
  std::vector<RedisLease> leases;
  std::vector<RedisExchange> exchanges;
  std::vector<const Batch*> asked;
  for (auto& [server, batch] : batches) {
    auto lease = topology_.Take(server, deadline_);
    if (!lease.ok()) {
      for (const size_t request : batch.requests) Lost(request, lease.status(), /*written=*/false);
      continue;
    }
    exchanges.push_back(Prepare(*lease, batch));
    leases.push_back(*std::move(lease));
    asked.push_back(&batch);
  }
  RunRedisExchanges(absl::MakeSpan(exchanges), topology_.exchange_limits(), topology_.WaitUntil(deadline_));
  for (size_t i = 0; i < exchanges.size(); ++i) Evaluate(exchanges[i], *asked[i]);
}

std::map<RedisAddress, RedisExecution::Batch> RedisExecution::Route() {
  std::map<RedisAddress, Batch> batches;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].done) continue;
    const State& state = states_[i];
    const auto server = state.redirection ? std::optional(state.redirection->server) : view_->map.MasterOf(state.slot);
    if (server) {
      batches[*server].requests.push_back(i);
    } else {
      RetryLater(i, absl::UnavailableError(absl::StrCat("Redis: no server has slot ", state.slot)));
    }
  }
  return batches;
}

RedisExchange RedisExecution::Prepare(const RedisLease& lease, Batch& batch) {
  RedisExchange exchange{.connection = &*lease};
  for (const size_t request : batch.requests) {
    State& state = states_[request];
    const bool asking = state.redirection && state.redirection->asking;
    state.redirection.reset();
    const size_t begin = exchange.commands.size();
    const auto add = [&](const RedisCommand& command) {
      if (asking) exchange.commands.push_back(&Asking());
      exchange.commands.push_back(&command);
    };
    const std::vector<RedisCommand>& before = requests_[request].before;
    const RedisCommand& last = state.with_source ? *state.with_source : requests_[request].command;
    if (state.in_steps) {
      add(state.steps_done < before.size() ? before[state.steps_done] : last);
    } else {
      for (const RedisCommand& command : before) add(command);
      add(last);
    }
    batch.places.push_back({begin, exchange.commands.size(), size_t{asking ? 2u : 1u}});
  }
  return exchange;
}

void RedisExecution::Evaluate(RedisExchange& exchange, const Batch& batch) {
  if (!exchange.status.ok()) ++topology_.counters().lost_connections;
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    const Place& place = batch.places[i];
    if (place.end > exchange.replies.size()) {
      Lost(batch.requests[i], exchange.status, /*written=*/place.end <= exchange.written);
      continue;
    }
    size_t decides = place.begin + place.step - 1;
    while (decides + 1 < place.end && !exchange.replies[decides].is_error()) decides += place.step;
    states_[batch.requests[i]].repeated |= decides + 1 < place.end && !exchange.replies[place.end - 1].is_error();
    Judge(batch.requests[i], *exchange.commands[decides], std::move(exchange.replies[decides]),
          exchange.connection->address());
  }
}

void RedisExecution::Judge(size_t request, const RedisCommand& command, RedisReply reply, const RedisAddress& server) {
  State& state = states_[request];
  if (!reply.is_error()) {
    if (state.in_steps && state.steps_done++ < requests_[request].before.size()) return;
    return Finish(request, {.reply = std::move(reply)});
  }
  const std::string name = command.name();
  RedisError error = ParseRedisError(reply.text);
  if (error.address.host.empty()) error.address.host = server.host;
  switch (error.kind) {
    case RedisError::Kind::kMoved:
      ++topology_.counters().moved;
      topology_.Moved(error.slot, error.address);
      refresh_ = true;
      state.redirection = {error.address, /*asking=*/false};
      state.last_error = StatusOfRedisError(name, reply.text);
      return;
    case RedisError::Kind::kAsk:
      ++topology_.counters().asked;
      state.last_error = StatusOfRedisError(name, reply.text);
      // Of one command of a sequence: the others may belong elsewhere.
      if (!state.in_steps && !requests_[request].before.empty()) {
        state.in_steps = true;
      } else {
        state.redirection = {error.address, /*asking=*/true};
      }
      return;
    case RedisError::Kind::kNoScript:
      if (requests_[request].script == nullptr || state.with_source) break;
      state.with_source = requests_[request].script->WithSource(requests_[request].command);
      return;
    case RedisError::Kind::kRetry:
      ++topology_.counters().retried;
      state.in_steps = !requests_[request].before.empty();
      return RetryLater(request, StatusOfRedisError(name, reply.text));
    case RedisError::Kind::kForCaller:
      break;
  }
  Finish(request, {.reply = StatusOfRedisError(name, reply.text)});
}

void RedisExecution::Lost(size_t request, const absl::Status& status, bool written) {
  if (written && !requests_[request].idempotent) {
    return Finish(request, {.reply = absl::UnavailableError(absl::StrCat("Redis: ", requests_[request].command.name(),
                                                                         ": outcome unknown: ", status.message())),
                            .outcome_unknown = true});
  }
  if (IsFinalRedisError(status)) return Finish(request, {.reply = status});
  states_[request].repeated |= written;
  RetryLater(request, status);
}

void RedisExecution::RetryLater(size_t request, absl::Status why) {
  states_[request].last_error = std::move(why);
  states_[request].redirection.reset();
  pause_ = refresh_ = true;
}

void RedisExecution::Finish(size_t request, RedisResult result) {
  states_[request].done = true;
  result.repeated = states_[request].repeated;
  results_[request] = std::move(result);
  --left_;
}

void RedisExecution::Pause() {
  if (++rounds_without_pause_ > kRoundsWithoutPause) pause_ = true;
  if (pause_) {
    rounds_without_pause_ = 0;
    if (!backoff_) backoff_.emplace(kPauses);
    const Clock::Duration left = deadline_ - clock_.Now();
    std::this_thread::sleep_for(std::clamp<Clock::Duration>(backoff_->Next(), Clock::Duration::zero(),
                                                            std::max(left, Clock::Duration::zero())));
  }
  // If nobody can say, the next round finds out what is still there.
  if (refresh_ && view_->clustered) topology_.Refresh(view_->generation, deadline_).IgnoreError();
}

void RedisExecution::GiveUp() {
  for (size_t i = 0; i < states_.size() && left_ > 0; ++i) {
    const State& state = states_[i];
    if (state.done) continue;
    const bool abandoned = topology_.abandoned();
    const std::string what = absl::StrCat("Redis: ", requests_[i].command.name(), ": no answer before ",
                                          abandoned ? "this server stops" : "the deadline");
    if (abandoned) {
      Finish(i, {.reply = absl::UnavailableError(what)});
    } else if (state.last_error.ok() || absl::IsDeadlineExceeded(state.last_error)) {
      Finish(i, {.reply = absl::DeadlineExceededError(what)});
    } else {
      Finish(i, {.reply = absl::UnavailableError(absl::StrCat(what, "; last: ", state.last_error.message()))});
    }
  }
}

}  // namespace routing_replay::server
