// C functions for appenders, and for checking that a sample is in the store.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/appender/append_plan.h"
#include "client/c_api/calls.h"
#include "client/c_api/objects.h"
#include "client/c_api/values.h"
#include "client/call/cancellation.h"
#include "client/commit.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

using namespace routing_replay;         // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::c_api;  // NOLINT(build/namespaces)

namespace {

using std::chrono::milliseconds;

// TryDo leaves appends with this many payload bytes to Do, which a call with a queue runs on a thread of the library.
constexpr size_t kLargeBytes = size_t{1} << 18;
// Timeout of a flush, a close or a commit if the call states none.
constexpr std::chrono::seconds kSettleTimeout(120);

// One call of rr_appender_append.
class Appending {
 public:
  Appending(std::shared_ptr<SharedAppender> appender, absl::Span<const rr_append> appends, int32_t on_full,
            uint64_t* sequences, size_t* dropped)
      : appender_(std::move(appender)),
        on_full_(on_full),
        tokens_(appends.size()),
        sequences_(sequences),
        dropped_(dropped) {
    for (const rr_append& append : appends) {
      auto given = AppendFrom(append, tokens_[appends_.size()]);
      // The appends before an invalid one are made; then Finish reports the error.
      if (!given.ok()) {
        wrong_ = given.status();
        return;
      }
      bytes_ += given->payload.size() + (given->tensor ? std::max<int64_t>(0, given->tensor->raw_size) : 0);
      appends_.push_back(*std::move(given));
    }
  }

  // Makes the appends that need no wait; none if they have kLargeBytes together. Returns nothing if some are left.
  std::optional<CallEnd> TryDo() {
    if (bytes_ >= kLargeBytes) return std::nullopt;
    const absl::Status status = Queue(/*may_wait=*/false);
    if (status.ok() && queued_.sequences.size() < appends_.size()) return std::nullopt;
    return Finish(status);
  }
  // Makes the remaining appends.
  CallEnd Do() {
    if (on_full_ == RR_BLOCK) return Finish(Queue(/*may_wait=*/true));
    if (on_full_ == RR_RAISE) return DoWithoutWait();
    client::Cancellation no_wait(Clock::Real().Now());
    const client::CallScope scope(&no_wait);
    return Finish(Queue(/*may_wait=*/true));
  }
  CallEnd DoWithoutWait() {
    const absl::Status status = Queue(/*may_wait=*/false);
    return Finish(status.ok() && queued_.sequences.size() < appends_.size() ? Full() : status);
  }
  static absl::Status Full() {
    return MakeError(absl::StatusCode::kResourceExhausted, "the append queue is full", {.reason = Reason::kOverBudget});
  }

 private:
  absl::Status Queue(bool may_wait) {
    const absl::Span<const NewAppend> rest = absl::MakeConstSpan(appends_).subspan(queued_.sequences.size());
    return appender_->appender->AppendMany(rest, queued_, may_wait);
  }

  CallEnd Finish(absl::Status status) {
    if (status.ok()) status = wrong_;
    if (!status.ok()) return status;
    std::copy(queued_.sequences.begin(), queued_.sequences.end(), sequences_);
    if (dropped_ != nullptr) *dropped_ = queued_.dropped;
    return {};
  }

  const std::shared_ptr<SharedAppender> appender_;
  const int32_t on_full_;
  std::vector<NewAppend> appends_;
  std::vector<std::vector<uint32_t>> tokens_;
  size_t bytes_ = 0;
  absl::Status wrong_;
  QueuedAppends queued_;
  uint64_t* const sequences_;
  size_t* const dropped_;
};

absl::Status CheckOnFull(int32_t on_full) {
  if (on_full >= RR_BLOCK && on_full <= RR_RAISE) return absl::OkStatus();
  return Invalid("on_full", absl::StrCat(on_full, " is not an rr_on_full"));
}

absl::StatusOr<AppenderOptions> OptionsFrom(const rr_appender_options* given) {
  AppenderOptions options{.drop_when_full = true};
  if (given == nullptr) return options;
  if (given->max_queued_bytes >= 0) options.max_queued_bytes = given->max_queued_bytes;
  if (given->queue_timeout_ms >= 0) options.queue_timeout = milliseconds(given->queue_timeout_ms);
  if (given->append_timeout_ms >= 0) options.append_timeout = milliseconds(given->append_timeout_ms);
  RR_RETURN_IF_ERROR(CheckOnFull(given->on_full));
  if (given->on_full != RR_BLOCK) options.queue_timeout = milliseconds(0);
  options.drop_when_full = given->on_full != RR_RAISE;
  return options;
}

rr_commit* NewCommit(const client::CommitOutcome& outcome) {
  Result<rr_commit> result;
  result->sample = result.Text(outcome.sample);
  result->status = result.Text(client::CommitStatusName(outcome.status));
  result->committed_rows = outcome.committed_rows;
  result->num_tokens = Optional(outcome.num_tokens);
  if (!outcome.error.ok()) {
    rr_error& error = result.Array<rr_error>(1)[0];
    FillError(outcome.error, result, error);
    result->error = &error;
  }
  return result.Release();
}

std::vector<std::pair<std::string, int64_t>> CountersOf(const AppenderMetrics& metrics) {
  std::vector<std::pair<std::string, int64_t>> counters;
  for (const auto& [name, counter] : client::kAppenderCounters) counters.emplace_back(name, metrics.*counter);
  return counters;
}

}  // namespace

namespace routing_replay::c_api {

void KeptOutcomes::Put(const AppendOutcome& outcome) {
  MutexLock lock(mutex_);
  outcomes_.push_back(outcome);
  changed_.NotifyAll();
}

template <typename Done>
absl::Status KeptOutcomes::Await(Clock::Time deadline, const Done& done) {
  while (!done()) {
    RR_RETURN_IF_ERROR(client::CheckCall());
    if (Clock::Real().Now() >= deadline) {
      return absl::DeadlineExceededError(
          "timed out: outcomes have not arrived, or the caller has not taken all of them");
    }
    changed_.WaitUntil(mutex_, deadline);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<AppendOutcome>> KeptOutcomes::Take(Clock::Time deadline) {
  const client::OnCancel wake(mutex_, changed_);
  MutexLock lock(mutex_);
  taken_ = false;
  changed_.NotifyAll();
  const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !outcomes_.empty() || closed_; };
  RR_RETURN_IF_ERROR(Await(deadline, some));
  taken_ = !outcomes_.empty();
  return std::exchange(outcomes_, {});
}

absl::Status KeptOutcomes::AwaitSeen(Clock::Time deadline) {
  const client::OnCancel wake(mutex_, changed_);
  MutexLock lock(mutex_);
  return Await(deadline, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return outcomes_.empty() && !taken_; });
}

void KeptOutcomes::BeginAnew() {
  MutexLock lock(mutex_);
  outcomes_.clear();
  taken_ = false;
}

void KeptOutcomes::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  changed_.NotifyAll();
}

}  // namespace routing_replay::c_api

void SharedRun::Add(const std::shared_ptr<Appender>& appender) {
  MutexLock lock(mutex_);
  std::erase_if(appenders_, [](const std::weak_ptr<Appender>& known) { return known.expired(); });
  appenders_.push_back(appender);
}

std::vector<std::shared_ptr<Appender>> SharedRun::Appenders() {
  std::vector<std::shared_ptr<Appender>> appenders;
  MutexLock lock(mutex_);
  for (const std::weak_ptr<Appender>& known : appenders_) {
    if (auto appender = known.lock()) appenders.push_back(std::move(appender));
  }
  return appenders;
}

rr_error* rr_run_new_appender(rr_run* run, const rr_appender_options* options, rr_appender** appender) {
  return Guard([&]() -> CallEnd {
    RR_ASSIGN_OR_RETURN(auto given, OptionsFrom(options));
    const auto shared = std::make_shared<SharedAppender>();
    shared->run = run->shared->run;
    if (options != nullptr && options->keep_outcomes != 0) {
      shared->kept = std::make_shared<KeptOutcomes>();
      given.on_outcome = [kept = shared->kept](const AppendOutcome& outcome) { kept->Put(outcome); };
    }
    shared->appender = shared->run->NewAppender(std::move(given));
    run->shared->Add(shared->appender);
    *appender = new rr_appender{shared};
    return {};
  });
}

rr_error* rr_appender_append(rr_appender* appender, const rr_append* appends, size_t count, int32_t on_full,
                             const rr_call* call, uint64_t* sequences, size_t* dropped) {
  return Guard([&]() -> CallEnd {
    RR_RETURN_IF_ERROR(CheckOnFull(on_full));
    const std::shared_ptr<SharedAppender>& shared = appender->shared;
    const absl::Span<const rr_append> given(appends, count);
    if (call == nullptr || call->queue == nullptr) {
      Appending appending(shared, given, on_full, sequences, dropped);
      if (on_full == RR_RAISE) return shared->order.empty() ? appending.DoWithoutWait() : Appending::Full();
      if (shared->order.empty()) {
        if (std::optional<CallEnd> end = appending.TryDo()) return *std::move(end);
      }
      const auto work = [&]() -> CallEnd {
        RR_RETURN_IF_ERROR(shared->order.AwaitAll());
        return appending.Do();
      };
      return Perform(call, work, Timeout::kOfWork);
    }
    const auto appending = std::make_shared<Appending>(shared, given, on_full, sequences, dropped);
    MutexLock lock(shared->calling);
    const bool is_first = shared->order.empty();
    const auto work = [appending, place = shared->order.Take()]() -> CallEnd {
      RR_RETURN_IF_ERROR(place->Await());
      return appending->Do();
    };
    return Perform(call, work, Timeout::kOfWork, [&] { return is_first ? appending->TryDo() : std::nullopt; });
  });
}

namespace {

// Flushes or closes, and waits until kept outcomes have been taken.
rr_error* Settle(rr_appender& appender, bool close, const rr_call* call) {
  return Guard([&] {
    const auto work = [shared = appender.shared, close, timeout = TimeoutOf(call, kSettleTimeout)]() -> CallEnd {
      const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), timeout);
      Appender& settled = *shared->appender;
      AppendFailures failures;
      absl::Status status = close ? settled.Close(timeout, &failures) : settled.Flush(timeout, &failures);
      if (shared->kept && !absl::IsCancelled(status)) {
        status.Update(shared->kept->AwaitSeen(deadline));
        if (close && !absl::IsCancelled(status)) shared->kept->Close();
      }
      return {std::move(status), std::move(failures)};
    };
    return Perform(call, work, Timeout::kOfWork);
  });
}

}  // namespace

rr_error* rr_appender_flush(rr_appender* appender, const rr_call* call) {
  return Settle(*appender, /*close=*/false, call);
}

rr_error* rr_appender_close(rr_appender* appender, const rr_call* call) {
  return Settle(*appender, /*close=*/true, call);
}

rr_error* rr_appender_outcomes(rr_appender* appender, const rr_call* call, const rr_outcomes** outcomes) {
  return Guard([&]() -> CallEnd {
    if (!appender->shared->kept) {
      return Invalid("keep_outcomes", "was not set for this appender");
    }
    const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), TimeoutOf(call, milliseconds::max()));
    const auto work = [shared = appender->shared, deadline, outcomes] {
      return Into(outcomes, shared->kept->Take(deadline), NewOutcomes);
    };
    return Perform(call, work, Timeout::kOfWork);
  });
}

rr_error* rr_appender_metrics(const rr_appender* appender, const rr_counters** counters) {
  return Guard([&]() -> CallEnd {
    Result<rr_counters> result;
    *result = Counters(CountersOf(appender->shared->appender->metrics()), result);
    *counters = result.Release();
    return {};
  });
}

rr_error* rr_run_commit(rr_run* run, rr_text sample, rr_integer num_tokens, const rr_tokens* tokens, rr_integer attempt,
                        const rr_call* call, const rr_commit** commit) {
  return Guard([&]() -> CallEnd {
    client::CommitRequest request{
        .sample = String(sample), .num_tokens = Optional(num_tokens), .attempt = Optional(attempt)};
    if (tokens != nullptr && tokens->data != nullptr) {
      RR_ASSIGN_OR_RETURN(request.tokens, TokensFrom(*tokens, "tokens", request.sample));
    }
    const auto work = [run = run->shared, request = std::move(request), timeout = TimeoutOf(call, kSettleTimeout),
                       commit] {
      return Into(commit, client::Commit(*run->run, run->Appenders(), request, timeout), NewCommit);
    };
    return Perform(call, work);
  });
}
