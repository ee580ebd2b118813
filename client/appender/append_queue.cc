#include "client/appender/append_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

// Credit is asked for at most so far ahead: enough to keep a connection busy over a round trip.
constexpr int64_t kMaxWantBytes = int64_t{16} << 20;

bool IsOverBudget(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  return status.code() == absl::StatusCode::kResourceExhausted && detail && detail->reason == Reason::kOverBudget;
}

// Errors of a whole stream that come again on the next one.
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

}  // namespace

// Whether there are rows, and none of them is recorded.
bool AppendQueue::IsUnrecorded(const std::vector<PieceState>& pieces) {
  int64_t rows = 0, unrecorded = 0;
  for (const PieceState& state : pieces) {
    rows += state.piece.header.rows.size();
    unrecorded += TotalRows(state.piece.header.unrecorded);
  }
  return rows > 0 && rows == unrecorded;
}

void AppendQueue::CountRefusal(Reason reason) {
  ++metrics_.refused_appends;
  ++metrics_.refused_by_reason[reason];
}

uint64_t AppendQueue::Add(AppendPlan plan, Clock::Time deadline) {
  const uint64_t sequence = std::exchange(next_sequence_, next_sequence_ + sequence_step_);
  Pending& pending = pending_[sequence];
  pending.unacknowledged = plan.pieces.size();
  pending.bytes = plan.bytes;
  pending.deadline = deadline;
  pending.end.outcome.sample = plan.pieces.front().header.sample;
  pending.end.note = std::move(plan.note);
  for (AppendPiece& piece : plan.pieces) pending.pieces.push_back({std::move(piece)});
  metrics_.narrowed_appends += plan.narrowed ? 1 : 0;
  metrics_.surplus_rows += plan.surplus_rows;
  metrics_.unrecorded_appends += IsUnrecorded(pending.pieces) ? 1 : 0;
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
  const bool fits = head_bytes <= credit_;
  AppendRequest request{.want_bytes = WantBytes(head_bytes, now)};
  if (!fits && request.want_bytes == 0) return std::nullopt;
  if (!named_run_) request.run = run_;
  named_run_ = true;
  asked_ = asked_ || request.want_bytes > 0;
  if (!fits) return Message{.header = EncodeAppendRequest(request, 0)};
  return Send(head, std::move(request));
}

// Asks for all that waits, minus what is granted; 0 if it is not the time to ask.
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
  credit_ -= piece.payload_bytes;
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
  if (credit.refusal.ok() && granted > 0) {
    credit_ += granted;
    ask_little_ = false;
    trouble_ = absl::OkStatus();
    backoff_.Reset();
    return;
  }
  if (!credit.refusal.ok()) {
    ++metrics_.credit_refusals;
    trouble_ = credit.refusal;
  }
  ask_little_ = true;
  ask_after_ = now + RefusalDelay(credit.refusal);
}

Clock::Duration AppendQueue::RefusalDelay(const absl::Status& refusal) {
  const auto detail = GetErrorDetail(refusal);
  const int32_t said = detail ? detail->retry_after_ms.value_or(0) : 0;
  return std::max<Clock::Duration>(backoff_.Next(), std::chrono::milliseconds(said));
}

void AppendQueue::OnAck(const AppendAck& ack, Clock::Time now) {
  const auto found = in_flight_.find(ack.append_id);
  if (found == in_flight_.end()) return;  // Of an earlier attempt, or of an append that was given up.
  const PieceRef ref = found->second;
  const bool time_may_cure = IsOverBudget(ack.error) || ack.error.code() == absl::StatusCode::kUnavailable;
  if (time_may_cure) {
    trouble_ = ack.error;
    send_after_ = now + RefusalDelay(ack.error);
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
  for (size_t i = 0; i < pending.pieces.size(); ++i) {
    if (to_send_.erase({sequence, i}) > 0) unsent_bytes_ -= pending.pieces[i].piece.payload_bytes;
  }
  std::erase_if(in_flight_, [&](const auto& entry) { return entry.second.sequence == sequence; });
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
  // Ids ascend in the order of sending, and so of the server's work.
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
    const absl::Status status =
        MakeError(known ? trouble_.code() : absl::StatusCode::kDeadlineExceeded,
                  absl::StrCat("not acknowledged in time: ", known ? trouble_.message() : "the server did not answer"),
                  GetErrorDetail(trouble_).value_or(ErrorDetail{}));
    Finish(sequence, WithSample(status, pending.end.outcome.sample));
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

}  // namespace routing_replay::client
