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

// How many samples and how many failures an AppendFailures holds at most, and how many samples an error message names.
constexpr size_t kMaxFailedSamples = 100'000, kMaxFailures = 100, kSamplesInText = 10;

// A FailureLog writes at most kLines lines per kPeriod.
constexpr int kLines = 20;
constexpr std::chrono::seconds kPeriod(10);

// Returns the first failure as an error whose message names the failed samples; OK if nothing failed.
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

// Most credit that is requested in advance: enough to keep a connection busy over a round trip.
constexpr int64_t kMaxWantBytes = int64_t{16} << 20;

bool IsOverBudget(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  return status.code() == absl::StatusCode::kResourceExhausted && detail && detail->reason == Reason::kOverBudget;
}

// Returns true for errors that end a whole stream and that would end the next stream, too.
bool IsPermanent(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

int64_t RowsOf(const AppendPlan& plan) {
  return plan.pieces.back().header.rows.end - plan.pieces.front().header.rows.begin;
}

}  // namespace

uint64_t AppendQueue::Add(AppendPlan plan, Clock::Time deadline) {
  const uint64_t sequence = std::exchange(next_sequence_, next_sequence_ + sequence_step_);
  Pending& pending = pending_[sequence];
  pending.unacknowledged = plan.pieces.size();
  pending.bytes = plan.bytes;
  pending.deadline = deadline;
  pending.end.outcome.sample = plan.pieces.front().header.sample;
  pending.end.note = std::move(plan.note);
  for (AppendPiece& piece : plan.pieces) pending.pieces.push_back({std::move(piece)});
  for (size_t i = 0; i < pending.pieces.size(); ++i) QueueToSend({sequence, i});
  queued_bytes_ += plan.bytes;
  ++metrics_.appends;
  return sequence;
}

void AppendQueue::QueueToSend(PieceRef ref) {
  if (to_send_.insert(ref).second) unsent_bytes_ += At(ref).piece.payload_bytes;
}

void AppendQueue::OnStreamStart() {
  named_run_ = false;
  credit_ = 0;
  asked_ = false;
}

std::optional<AppendQueue::Message> AppendQueue::NextMessage(Clock::Time now) {
  if (to_send_.empty() || now < send_after_) return std::nullopt;
  const PieceRef head = *to_send_.begin();
  const int64_t head_bytes = At(head).piece.payload_bytes;
  // A small payload needs no credit, unless a request for credit is unanswered or was rejected.
  const bool is_free = head_bytes <= kFreePayloadBytes && !asked_ && !ask_little_;
  const bool fits = head_bytes <= credit_ || is_free;
  AppendRequest request{.want_bytes = is_free ? 0 : WantBytes(head_bytes, now)};
  if (!fits && request.want_bytes == 0) return std::nullopt;
  if (!named_run_) request.run = run_;
  named_run_ = true;
  asked_ = asked_ || request.want_bytes > 0;
  if (!fits) return Message{.header = EncodeAppendRequest(request, 0)};
  return Send(head, std::move(request));
}

// Returns how many bytes of credit to request now: what the waiting pieces need beyond the credit that is left, but no
// more than kMaxWantBytes unless the next piece alone needs more. After a rejection only the next piece counts. 0 if
// nothing is missing, the last request is unanswered, or it is too early to ask again.
uint64_t AppendQueue::WantBytes(int64_t head_bytes, Clock::Time now) const {
  if (asked_ || now < ask_after_) return 0;
  const int64_t missing = (ask_little_ ? head_bytes : unsent_bytes_) - credit_;
  if (missing <= 0) return 0;
  return static_cast<uint64_t>(std::min(missing, std::max(kMaxWantBytes, head_bytes - credit_)));
}

AppendQueue::Message AppendQueue::Send(PieceRef ref, AppendRequest request) {
  PieceState& state = At(ref);
  const AppendPiece& piece = state.piece;
  to_send_.erase(ref);
  unsent_bytes_ -= piece.payload_bytes;
  credit_ = std::max<int64_t>(0, credit_ - piece.payload_bytes);
  metrics_.payload_bytes += piece.payload_bytes;
  if (std::exchange(state.was_sent, true)) metrics_.resent_bytes += piece.payload_bytes;
  request.append = piece.header;
  request.append->append_id = next_append_id_++;
  in_flight_[request.append->append_id] = ref;
  return {EncodeAppendRequest(request, piece.payload_bytes), piece.payload, piece.owner};
}

void AppendQueue::OnResponse(const AppendResponse& response, Clock::Time now) {
  if (response.ack) OnAck(*response.ack, now);
  if (response.credit) OnCredit(*response.credit, now);
}

void AppendQueue::OnCredit(const Credit& credit, Clock::Time now) {
  asked_ = false;
  const int64_t granted = static_cast<int64_t>(std::min<uint64_t>(credit.granted_bytes, kMaxWantBytes * 1024));
  if (credit.rejection.ok() && granted > 0) {
    credit_ += granted;
    ask_little_ = false;
    trouble_ = absl::OkStatus();
    backoff_.Reset();
    return;
  }
  if (!credit.rejection.ok()) {
    ++metrics_.credit_rejections;
    if (IsPermanent(credit.rejection.code()) && !to_send_.empty()) {  // For example, the run is gone: never retry.
      return Finish(to_send_.begin()->sequence, credit.rejection);
    }
    trouble_ = credit.rejection;
  }
  ask_little_ = true;
  ask_after_ = now + RejectionDelay(credit.rejection);
}

Clock::Duration AppendQueue::RejectionDelay(const absl::Status& rejection) {
  const auto detail = GetErrorDetail(rejection);
  const int32_t said = detail ? detail->retry_after_ms.value_or(0) : 0;
  return std::max<Clock::Duration>(backoff_.Next(), std::chrono::milliseconds(said));
}

std::optional<AppendQueue::Message> AppendQueue::NextIfSmall(Clock::Time now) {
  if (to_send_.size() != 1 || unsent_bytes_ > kFreePayloadBytes) return std::nullopt;
  return NextMessage(now);
}

void AppendQueue::OnAck(const AppendAck& ack, Clock::Time now) {
  const auto found = in_flight_.find(ack.append_id);
  if (found == in_flight_.end()) return;  // The piece was sent again, or its append has failed since.
  const PieceRef ref = found->second;
  if (IsOverBudget(ack.error)) ++metrics_.credit_rejections;
  const bool time_may_cure = IsOverBudget(ack.error) || ack.error.code() == absl::StatusCode::kUnavailable;
  if (time_may_cure) {
    trouble_ = ack.error;
    send_after_ = now + RejectionDelay(ack.error);
    return SendAgain(ref);
  }
  in_flight_.erase(found);
  if (ack.error.ok()) {
    trouble_ = absl::OkStatus();
    return Acknowledge(ref, ack);
  }
  AppendOutcome& outcome = pending_.at(ref.sequence).end.outcome;
  if (const auto detail = GetErrorDetail(ack.error)) {
    outcome.committed_rows = detail->committed_rows.value_or(outcome.committed_rows);
    outcome.revision = detail->revision.value_or(outcome.revision);
  }
  Finish(ref.sequence, ack.error);
}

void AppendQueue::SendAgain(PieceRef ref) {
  for (auto it = in_flight_.begin(); it != in_flight_.end();) {
    if (it->second >= ref && AreOfOneSample(At(it->second).piece, At(ref).piece)) {
      QueueToSend(it->second);
      it = in_flight_.erase(it);
    } else {
      ++it;
    }
  }
}

void AppendQueue::Acknowledge(PieceRef ref, const AppendAck& ack) {
  Pending& pending = pending_.at(ref.sequence);
  AddAck(ack, pending.end.outcome);
  metrics_.rows += At(ref).piece.header.rows.size();
  if (--pending.unacknowledged == 0) Finish(ref.sequence, absl::OkStatus());
}

void AppendQueue::Finish(uint64_t sequence, const absl::Status& status) {
  const auto found = pending_.find(sequence);
  Pending& pending = found->second;
  AppendOutcome& outcome = pending.end.outcome;
  outcome.status = status;
  for (size_t i = 0; i < pending.pieces.size() && !status.ok(); ++i) {
    if (to_send_.erase({sequence, i}) > 0) unsent_bytes_ -= pending.pieces[i].piece.payload_bytes;
  }
  // Search in_flight_, which may hold thousands of pieces, only if the append failed: an acknowledged one has no pieces
  // there.
  if (!status.ok()) std::erase_if(in_flight_, [&](const auto& entry) { return entry.second.sequence == sequence; });
  queued_bytes_ -= pending.bytes;
  ++(status.ok() ? metrics_.acknowledged : metrics_.failed);
  metrics_.trimmed_rows += outcome.trimmed_rows;
  metrics_.conflicting_rows += outcome.conflicting_rows;
  metrics_.unrecorded_rows += outcome.unrecorded_rows;
  outcome.sequence = sequence;
  finished_.push_back(std::move(pending.end));
  pending_.erase(found);
}

void AppendQueue::OnStreamEnd(const absl::Status& why) {
  if (!why.ok()) trouble_ = why;
  // Append ids ascend in the order in which messages are sent and processed, so the server ended the stream because of
  // the lowest id in flight.
  const auto oldest = in_flight_.begin();
  const auto unsent = to_send_.begin();
  if (IsPermanent(why.code()) && oldest != in_flight_.end()) {
    Finish(oldest->second.sequence, why);
  } else if (IsPermanent(why.code()) && unsent != to_send_.end()) {
    Finish(unsent->sequence, why);
  }
  for (const auto& [id, ref] : in_flight_) QueueToSend(ref);
  in_flight_.clear();
  OnStreamStart();
}

bool AppendQueue::Expire(Clock::Time now) {
  bool any_sent = false;
  while (!pending_.empty() && pending_.begin()->second.deadline <= now) {
    const auto& [sequence, pending] = *pending_.begin();
    any_sent = any_sent || std::any_of(in_flight_.begin(), in_flight_.end(),
                                       [&, s = sequence](const auto& entry) { return entry.second.sequence == s; });
    const bool known = !trouble_.ok();
    const absl::Status status = MakeError(
        known ? trouble_.code() : absl::StatusCode::kDeadlineExceeded,
        absl::StrCat("not acknowledged in time: ", known ? trouble_.message() : "the server did not answer"),
        // Of the earlier error, keep only the reason: its other fields may be about another append.
        {.reason = GetErrorDetail(trouble_).value_or(ErrorDetail{}).reason, .sample = pending.end.outcome.sample});
    Finish(sequence, status);
  }
  return any_sent;
}

std::optional<Clock::Time> AppendQueue::NextEvent(Clock::Time now) const {
  if (pending_.empty()) return std::nullopt;
  Clock::Time next = pending_.begin()->second.deadline;
  for (const Clock::Time wait : {ask_after_, send_after_}) {
    if (wait > now) next = std::min(next, wait);
  }
  return next;
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
  // Only an error that names append.restart_nonce means that a later attempt replaces these rows. If it names another
  // field (the sample was truncated, for example), the rows are lost, and that is a failure.
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

AppendSession::AppendSession(const Options& options, Backoff rejection_backoff, Backoff reconnect_backoff)
    : options_(options),
      queue_(options.run, std::move(rejection_backoff), options.first_sequence, options.sequence_step),
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

uint64_t AppendSession::Add(AppendPlan plan, Clock::Time now, bool dropped) {
  if (dropped) {
    plan = DropPayload(plan);
    ++dropped_appends_;
    dropped_rows_ += RowsOf(plan);
  }
  const AppendHeader& header = plan.pieces.front().header;
  SampleAttempt key{header.sample, AttemptOf(header.restart_nonce)};
  const uint64_t sequence = queue_.Add(std::move(plan), DeadlineAfter(now, options_.append_timeout));
  open_.Add(sequence, std::move(key), dropped);
  return sequence;
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
  // An append that is added after this call cannot expire before `until`: deadlines never decrease.
  Clock::Time until = queue_.NextEvent(now).value_or(DeadlineAfter(now, options_.append_timeout));
  if (state_ == State::kIdle && queue_.HasUnsent()) until = std::min(until, connect_after_);
  return {.until = until};
}

std::optional<AppendQueue::Message> AppendSession::NextIfSmall(Clock::Time now) {
  return state_ == State::kStreaming ? queue_.NextIfSmall(now) : std::nullopt;
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
  if (stuck_) why = absl::DeadlineExceededError("the server did not acknowledge an append in time");
  queue_.OnStreamEnd(why);
}

void AppendSession::OnRest(Clock::Time now) {
  OnStreamEnd(absl::CancelledError("the stream was ended for a fork of this process"), now);
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
  metrics.queued_bytes = queue_.queued_bytes();
  metrics.open_appends = static_cast<int64_t>(open_count());
  return metrics;
}

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
