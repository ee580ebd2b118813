#include "client/appender/append_session.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/call/log.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

constexpr Backoff::Options kRefusalBackoff{.initial = std::chrono::milliseconds(5),
                                           .maximum = std::chrono::milliseconds(500)};
constexpr Backoff::Options kReconnectBackoff{.initial = std::chrono::milliseconds(50),
                                             .maximum = std::chrono::seconds(1)};
constexpr std::chrono::hours kLongWait(1);
// Of AppendFailures; and how many samples a text names.
constexpr size_t kMaxFailedSamples = 100'000, kMaxFailures = 100, kSamplesInText = 10;

// Its first failure, with the samples named.
absl::Status AsError(const AppendFailures& failed) {
  if (failed.failures.empty()) return absl::OkStatus();
  const AppendOutcome& first = failed.failures.front();
  std::string text = absl::StrCat("sample ", first.sample, ": ", first.status.message());
  if (failed.failed_samples.size() > 1) {
    auto end = failed.failed_samples.begin();
    std::advance(end, std::min(kSamplesInText, failed.failed_samples.size()));
    absl::StrAppend(&text, "; ", failed.appends, " appends failed, of samples ",
                    absl::StrJoin(failed.failed_samples.begin(), end, ", "));
    const size_t more = failed.failed_samples.size() - std::min(kSamplesInText, failed.failed_samples.size());
    if (more > 0) absl::StrAppend(&text, " and ", more, " more");
  }
  ErrorDetail detail = GetErrorDetail(first.status).value_or(ErrorDetail());
  detail.sample = first.sample;
  return MakeError(first.status.code(), text, detail);
}

}  // namespace

SampleAttempt KeyOf(const AppendPlan& plan) {
  const AppendHeader& header = plan.pieces.front().header;
  return {header.sample, AttemptOf(header.restart_nonce)};
}

std::optional<AppendTrouble> Worse(std::optional<AppendTrouble> one, std::optional<AppendTrouble> other) {
  if (!one || !other) return one ? one : other;
  return one->marked && !other->marked ? other : one;
}

void OpenAppends::Add(uint64_t sequence, SampleAttempt key, bool dropped) {
  if (const auto trouble = trouble_of_.find(key); trouble != trouble_of_.end() && trouble->second->told) {
    Forget(trouble->second);
  }
  if (dropped) {
    Note(key, {MakeError(absl::StatusCode::kResourceExhausted, "the queue was full, and rows were dropped",
                         {.reason = Reason::kOverBudget, .sample = key.sample}),
               /*marked=*/true});
  }
  ++counts_[key];
  keys_.emplace(sequence, std::move(key));
}

bool OpenAppends::Finish(const AppendOutcome& outcome) {
  const auto found = keys_.find(outcome.sequence);
  if (found == keys_.end()) return false;
  const SampleAttempt key = std::move(found->second);
  keys_.erase(found);
  if (const auto count = counts_.find(key); --count->second == 0) counts_.erase(count);
  if (outcome.status.ok()) return false;
  Note(key, {outcome.status, /*marked=*/false});
  const auto detail = GetErrorDetail(outcome.status);
  // Of another field: the sample has no attempts, or was truncated, and rows are lost that nothing newer replaces.
  return key.attempt && detail && detail->reason == Reason::kOldRevision && detail->field == "append.restart_nonce";
}

void OpenAppends::Note(const SampleAttempt& key, AppendTrouble trouble) {
  if (const auto known = trouble_of_.find(key); known != trouble_of_.end()) {
    Remembered& before = *known->second;
    before.trouble = *Worse(std::move(before.trouble), std::move(trouble));
    before.told = false;
    return;
  }
  if (troubles_.size() >= remembered_) Forget(troubles_.begin());
  trouble_of_[key] = troubles_.insert(troubles_.end(), {key, std::move(trouble)});
}

void OpenAppends::Forget(Troubles::iterator trouble) {
  trouble_of_.erase(trouble->key);
  troubles_.erase(trouble);
}

std::optional<AppendTrouble> OpenAppends::TellTrouble(const SampleAttempt& key) {
  const auto found = trouble_of_.find(key);
  if (found == trouble_of_.end()) return std::nullopt;
  found->second->told = true;
  return found->second->trouble;
}

AppendSession::AppendSession(const Options& options)
    : AppendSession(options, Backoff(kRefusalBackoff), Backoff(kReconnectBackoff)) {}

AppendSession::AppendSession(const Options& options, Backoff refusal_backoff, Backoff reconnect_backoff)
    : options_(options),
      queue_(options.run, std::move(refusal_backoff), options.first_sequence, options.sequence_step),
      reconnect_backoff_(std::move(reconnect_backoff)),
      log_(options.run) {}

bool AppendSession::HasRoom(int64_t bytes) const {
  return queue_.queued_bytes() == 0 || bytes <= options_.max_queued_bytes - queue_.queued_bytes();
}

absl::Status AppendSession::NoRoom(absl::string_view sample) const {
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("the append queue stayed full: ", queue_.queued_bytes(), " of ",
                                options_.max_queued_bytes, " bytes"),
                   {.reason = Reason::kOverBudget, .sample = std::string(sample)});
}

uint64_t AppendSession::Add(AppendPlan plan, Clock::Time now) { return AddOpen(std::move(plan), now, false); }

uint64_t AppendSession::AddOpen(AppendPlan plan, Clock::Time now, bool dropped) {
  SampleAttempt key = KeyOf(plan);
  const uint64_t sequence = queue_.Add(std::move(plan), DeadlineAfter(now, options_.append_timeout));
  open_.Add(sequence, std::move(key), dropped);
  return sequence;
}

uint64_t AppendSession::AddDropped(const AppendPlan& plan, Clock::Time now) {
  AppendPlan mark = DropPayload(plan);
  ++dropped_appends_;
  for (const AppendPiece& piece : mark.pieces) dropped_rows_ += piece.header.rows.size();
  return AddOpen(std::move(mark), now, true);
}

AppendSession::Action AppendSession::Next(Clock::Time now, bool can_write) {
  const bool expired_in_flight = queue_.Expire(now);
  if (state_ == State::kStreaming && (expired_in_flight || unreadable_)) {
    stuck_ = expired_in_flight;
    state_ = State::kEnding;
    return {.step = Step::kCancel};
  }
  if (state_ == State::kIdle && queue_.HasUnsent() && now >= connect_after_) {
    if (std::exchange(connected_before_, true)) queue_.CountReconnect();
    queue_.OnStreamStart();
    state_ = State::kStreaming;
    stuck_ = false;
    unreadable_ = false;
    return {.step = Step::kConnect};
  }
  if (state_ == State::kStreaming && can_write) {
    if (auto message = queue_.NextMessage(now)) return {.step = Step::kSend, .message = *std::move(message)};
  }
  Clock::Time until = queue_.NextEvent(now).value_or(now + kLongWait);
  if (state_ == State::kIdle && queue_.HasUnsent()) until = std::min(until, connect_after_);
  return {.until = until};
}

void AppendSession::OnMessage(const absl::StatusOr<ByteChain>& bytes, Clock::Time now) {
  const auto response = bytes.ok() ? ParseAppendResponse(*bytes) : bytes.status();
  if (!response.ok()) {
    unreadable_ = true;
    return;
  }
  reconnect_backoff_.Reset();
  queue_.OnResponse(*response, now);
}

void AppendSession::OnStreamEnd(absl::Status why, Clock::Time now) {
  state_ = State::kIdle;
  connect_after_ = now + reconnect_backoff_.Next();
  if (stuck_) why = absl::DeadlineExceededError("the server did not answer");
  queue_.OnStreamEnd(why);
}

void AppendSession::OnRest(Clock::Time now) {
  OnStreamEnd(absl::CancelledError("at rest"), now);
  reconnect_backoff_.Reset();
  connect_after_ = now;
}

void AppendSession::OnDelivered(const std::vector<AppendOutcome>& outcomes) {
  for (const AppendOutcome& outcome : outcomes) {
    const bool stale = open_.Finish(outcome);
    stale_appends_ += stale ? 1 : 0;
    if (outcome.status.ok() || stale) continue;
    ++failures_.appends;
    if (failures_.failures.size() < kMaxFailures) failures_.failures.push_back(outcome);
    if (failures_.failed_samples.contains(outcome.sample)) continue;
    log_.Add(outcome.sample, outcome.status, Clock::Real().Now());
    if (failures_.failed_samples.size() < kMaxFailedSamples) failures_.failed_samples.insert(outcome.sample);
  }
}

absl::Status AppendSession::TakeError(AppendFailures* failures) {
  log_.TellRest();
  AppendFailures failed = std::exchange(failures_, {});
  absl::Status error = AsError(failed);
  if (failures != nullptr) *failures = std::move(failed);
  return error;
}

absl::Status AppendSession::NotFlushed() const {
  return absl::DeadlineExceededError(absl::StrCat(open_.size(), " appends have no outcome yet"));
}

AppenderMetrics AppendSession::metrics() const {
  AppenderMetrics metrics = queue_.metrics();
  metrics.dropped_appends = dropped_appends_;
  metrics.dropped_rows = dropped_rows_;
  metrics.stale_appends = stale_appends_;
  metrics.queued_bytes = queued_bytes();
  metrics.open_appends = static_cast<int64_t>(open_count());
  return metrics;
}

namespace {

// Lines in so much time.
constexpr int kLines = 20;
constexpr std::chrono::seconds kPeriod(10);

}  // namespace

void FailureLog::Add(absl::string_view sample, const absl::Status& why, Clock::Time now) {
  if (lines_ == 0 || now - since_ >= kPeriod) {
    TellRest();
    since_ = now;
    lines_ = 0;
  }
  if (lines_ == kLines) {
    ++rest_;
    return;
  }
  ++lines_;
  const Reason reason = GetErrorDetail(why).value_or(ErrorDetail()).reason;
  Log(absl::StrCat("run ", run_, ": an append of sample ", sample, " failed: ", absl::StatusCodeToString(why.code()),
                   reason == Reason::kUnspecified ? "" : absl::StrCat(" (", ReasonName(reason), ")"), ": ",
                   why.message()));
}

void FailureLog::TellRest() {
  if (rest_ > 0) Log(absl::StrCat("run ", run_, ": appends of ", rest_, " more samples failed"));
  rest_ = 0;
}

}  // namespace routing_replay::client
