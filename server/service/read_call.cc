// Read: streams the messages of a ReadSession. If the store may wait, a worker makes each message. One message is in
// flight at a time, so a slow reader costs the memory of one message; a waiting read holds no thread.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "proto/wire/status_macros.h"
#include "server/service/read_session.h"
#include "server/service/served_call.h"
#include "server/store/store_time.h"

namespace routing_replay::server {
namespace {

// A waiting read answers NOT_READY this long before the caller's deadline. Otherwise the caller would get only
// DEADLINE_EXCEEDED.
constexpr std::chrono::milliseconds kAnswerTime(200);

class ReadCall final : public ServedCall {
 public:
  ReadCall(ServiceContext& context, CallLoop& loop, std::unique_ptr<CallStream> stream)
      : ServedCall(context, loop, "Read", std::move(stream)) {}

  void Drain() override;

 private:
  std::unique_ptr<ServedCall> Successor(std::unique_ptr<CallStream> stream) const override {
    return std::make_unique<ReadCall>(context_, loop_, std::move(stream));
  }
  void OnAdmitted() override {
    context_.metrics.CountStream(caller_.transport);
    ReceiveRequest();
  }
  void OnRequest() override;
  void OnWorked() override;
  void OnGone() override {
    if (!writing()) FinishWith(absl::CancelledError("the client is gone"));
  }
  void OnWritten(bool ok) override;
  void OnTakesNothing() override {
    CutOff(absl::DeadlineExceededError("the client read nothing during stall-timeout"));
  }
  void OnChanged();
  void OnWaitOver(bool fired);
  void OnDeadline(bool fired);

  // Calls Advance if the caller's token still allows the read: a revoked token must end a long read.
  void Continue();
  // Starts the next step: MakeStep, on a worker thread if the store may wait.
  void Advance();
  // Makes the next step, for which it may wait for the store. Then OnWorked sends the result, calls Park, or finishes
  // the call.
  void MakeStep();
  void SendStep(ReadStep step);
  // Waits, without a thread, for a change of the sample that step_ waits for, or for the end of the wait.
  void Park();
  void Unpark();
  // Takes a place among the waiting reads, if it has none. If they hold too much memory and the read has already sent
  // samples, it stops waiting: samples that are not ready get NOT_READY, those that do not exist NOT_FOUND.
  absl::Status TakePlace();
  // Parses the received request, after reserving the memory that it takes.
  absl::StatusOr<ReadRequest> TakeRequest();
  void FinishWith(const absl::Status& status) override;
  // Ends the call, whatever it is doing.
  void CutOff(const absl::Status& why);

  CallEvent changed_{this, [this](bool) { OnChanged(); }};
  CallEvent wait_over_{this, [this](bool fired) { OnWaitOver(fired); }};
  CallEvent deadline_{this, [this](bool fired) { OnDeadline(fired); }};

  // While a worker is busy, only it uses the members from here to new_watch_.
  std::optional<ReadRequest> asked_;  // Set until the session is created.
  std::unique_ptr<ReadSession> session_;
  ReadStep step_;
  std::unique_ptr<Store::Watch> new_watch_;  // Watch for the sample that the last step waits for.
  bool may_wait_ = false;

  Clock::Time wait_until_;
  std::unique_ptr<Store::Watch> watch_;
  CallAlarm change_alarm_, wait_alarm_, deadline_alarm_;
  ByteReservation request_memory_;
  std::atomic<bool> sent_away_{false};    // Evicted from the waiting room, to make room for others.
  std::unique_ptr<Place> waiting_place_;  // Held while the read waits.
  bool change_expected_ = false;          // The watch or Unpark will post the event changed_.
  enum class Change { kNone, kAwaited, kCame };
  std::atomic<Change> change_{Change::kNone};  // Of the watched sample. Who replaces kAwaited by kCame posts changed_.
  bool waiting_is_over_ = false;
  absl::Status cut_off_;  // The reason, if the call was cut off during a write.
};

void ReadCall::OnRequest() {
  context_.metrics.reads.Increment();
  auto request = TakeRequest();
  if (!request.ok()) return FinishWith(request.status());
  const absl::Status allowed = Authorize(context_, caller_, Rpc::kRead, request->run);
  if (!allowed.ok()) return FinishWith(allowed);
  asked_ = *std::move(request);
  const auto now = Clock::Real().Now();
  wait_until_ = std::min(now + context_.config.max_wait, caller_.deadline - kAnswerTime);
  wait_alarm_.Set(loop_, wait_until_, wait_over_);
  deadline_alarm_.Set(loop_, now + context_.config.max_deadline, deadline_);
  Advance();
}

absl::StatusOr<ReadRequest> ReadCall::TakeRequest() {
  RR_ASSIGN_OR_RETURN(const auto message, stream_->Take());
  // Memory for the received bytes, and for a contiguous copy while they are parsed.
  RR_ASSIGN_OR_RETURN(const auto received,
                      ReserveForRead(context_.read_requests, 2 * static_cast<int64_t>(message.bytes.size())));
  return ParseReadRequest(message.bytes, [&](int64_t memory) -> absl::Status {
    RR_ASSIGN_OR_RETURN(auto reservation, ReserveForRead(context_.read_requests, memory));
    request_memory_ = std::move(reservation);
    return absl::OkStatus();
  });
}

absl::Status ReadCall::TakePlace() {
  if (waiting_place_ != nullptr) return absl::OkStatus();
  // An evicted read is answered as if its wait were over: with NOT_READY, or NOT_FOUND for samples that do not exist.
  auto place = context_.waiting_reads.Enter(session_->run(), request_memory_.bytes(), [this] {
    sent_away_ = true;
    wait_alarm_.Cancel();
  });
  if (!place.ok()) {
    context_.metrics.CountQuotaRejection("waiting_reads");
    if (writes() == 0) return place.status();
    waiting_is_over_ = true;
    return absl::OkStatus();
  }
  waiting_place_ = *std::move(place);
  return absl::OkStatus();
}

void ReadCall::Advance() {
  if (writing() || finishing_) return;
  if (Clock::Real().Now() >= wait_until_) waiting_is_over_ = true;
  may_wait_ = !waiting_is_over_;
  const absl::Status taken = StartWork(context_.readers, [this] { MakeStep(); });
  if (!taken.ok()) FinishWith(taken);
}

// If the step must wait: begins to watch the sample first, then checks again, so that no change in between is missed.
void ReadCall::MakeStep() {
  if (finishing_) return;
  const CallDeadline deadline(caller_.deadline);
  if (session_ == nullptr) {
    auto session = ReadSession::Create(context_.store, context_.read_requests, *std::move(asked_),
                                       context_.config.read_message_bytes);
    if (!session.ok()) {
      step_ = {.kind = ReadStep::Kind::kFailed, .failure = session.status()};
      return;
    }
    session_ = *std::move(session);
  }
  step_ = session_->Next(!may_wait_);
  if (step_.kind != ReadStep::Kind::kWait) return;
  change_ = Change::kNone;
  auto watch = context_.store.WatchSample(session_->run(), session_->producer(), step_.wait_for, [this] {
    if (change_.exchange(Change::kCame) == Change::kAwaited) loop_.Post(change_alarm_, changed_);
  });
  // If watching fails because the run is gone, the next check reports that.
  step_ = session_->Next(!watch.ok());
  if (step_.kind == ReadStep::Kind::kWait) new_watch_ = *std::move(watch);
}

void ReadCall::OnWorked() {
  if (finishing_) {
    new_watch_.reset();
    step_ = {};
    connection_.reset();
    return;
  }
  if (step_.kind == ReadStep::Kind::kWait) return Park();
  waiting_place_.reset();
  if (step_.kind == ReadStep::Kind::kDone) return FinishWith(absl::OkStatus());
  if (step_.kind == ReadStep::Kind::kFailed) {
    context_.metrics.CountStoreError(step_.failure);
    return FinishWith(step_.failure);
  }
  SendStep(std::exchange(step_, {}));
}

void ReadCall::SendStep(ReadStep step) {
  for (const SampleRecord& record : step.records)
    context_.metrics.CountRecord(session_->run(), session_->producer(), record);
  context_.metrics.egress_table_bytes.Increment(static_cast<double>(step.header.size()));
  context_.metrics.egress_bytes.Increment(static_cast<double>(step.payload_bytes));
  Write({.header = std::move(step.header), .payload = std::move(step.payload)});
}

void ReadCall::OnWritten(bool ok) {
  if (!ok) return FinishWith(cut_off_.ok() ? absl::CancelledError("the client is gone") : cut_off_);
  Continue();
}

void ReadCall::Continue() {
  if (writing() || finishing_ || working()) return;
  const absl::Status allowed = Authorize(context_, caller_, Rpc::kRead, session_->run());
  if (!allowed.ok()) return FinishWith(allowed);
  Advance();
}

void ReadCall::Park() {
  watch_ = std::move(new_watch_);
  if (context_.draining) return FinishWith(DrainingError());
  if (absl::Status place = TakePlace(); !place.ok()) return FinishWith(place);
  if (waiting_is_over_) {
    watch_.reset();
    return Advance();
  }
  changed_.Begin();
  change_expected_ = true;
  Change before = Change::kNone;
  if (!change_.compare_exchange_strong(before, Change::kAwaited)) loop_.Post(change_alarm_, changed_);
}

// Ends the watch. If the call still expects changed_, and the watch has not posted it, posts it.
void ReadCall::Unpark() {
  watch_.reset();
  if (change_expected_ && change_.exchange(Change::kCame) == Change::kAwaited) {
    loop_.Post(change_alarm_, changed_);
  }
}

void ReadCall::OnChanged() {
  change_expected_ = false;
  watch_.reset();
  Continue();
}

void ReadCall::OnWaitOver(bool fired) {
  if (finishing_ || (!fired && !sent_away_)) return;
  if (!fired) context_.metrics.CountQuotaRejection("waiting_reads");
  waiting_is_over_ = true;
  Unpark();
}

void ReadCall::OnDeadline(bool fired) {
  if (!fired || finishing_) return;
  context_.metrics.CountQuotaRejection("max_deadline");
  CutOff(absl::DeadlineExceededError("the call took longer than this server allows (max-deadline)"));
}

void ReadCall::CutOff(const absl::Status& why) {
  if (!writing()) return FinishWith(why);
  cut_off_ = why;
  stream_->Cancel();
}

void ReadCall::FinishWith(const absl::Status& status) {
  if (finishing_.exchange(true)) return;
  Unpark();
  waiting_place_.reset();
  for (CallAlarm* alarm : {&wait_alarm_, &deadline_alarm_}) alarm->Cancel();
  // This call counts as one of its connection's open calls until its worker is done: otherwise a client could get more
  // work done by cancelling calls.
  Finish(status, /*keep_place=*/working());
}

void ReadCall::Drain() {
  if (working() || finishing_ || writing()) return;
  const bool without_request = has_arrived() && session_ == nullptr;
  if (change_expected_ || without_request) FinishWith(DrainingError());
}

}  // namespace

void ServeRead(ServiceContext& context, CallLoop& loop, std::unique_ptr<CallStream> stream) {
  ServedCall::Await(std::make_unique<ReadCall>(context, loop, std::move(stream)));
}

}  // namespace routing_replay::server
