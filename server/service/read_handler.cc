#include "server/service/read_handler.h"

#include <algorithm>
#include <utility>

#include "proto/transport/transport.h"
#include "server/service/service_context.h"
#include "server/store/store_time.h"

namespace routing_replay::server {
namespace {

using std::chrono::system_clock;

// A waiting read answers NOT_READY a little before the caller's deadline, or the caller would only see the deadline.
constexpr std::chrono::milliseconds kAnswerTime(200);

}  // namespace

ReadCall::ReadCall(ServiceContext& context, RawService& service, CallLoop& loop)
    : context_(context), service_(service), loop_(loop) {}

void ReadCall::Listen(ServiceContext& context, RawService& service, CallLoop& loop) {
  auto call = std::unique_ptr<ReadCall>(new ReadCall(context, service, loop));
  ReadCall* c = call.get();
  loop.Adopt(std::move(call));
  c->grpc_context_.AsyncNotifyWhenDone(&c->done_);
  service.RequestCall("Read", &c->grpc_context_, &c->writer_, loop.queue(), loop.queue(), c->arrived_.Begin());
}

void ReadCall::OnArrived(bool ok) {
  if (!ok) return SetFinished();  // The server is shutting down.
  done_.Begin();                  // Promised only for calls that arrive.
  Listen(context_, service_, loop_);
  record_.emplace(context_.calls, "Read", grpc_context_);
  if (absl::Status status = AdmitCall(context_, grpc_context_, connection_); !status.ok()) return FinishWith(status);
  request_alarm_.Set(loop_.queue(), system_clock::now() + context_.config.stall_timeout, request_due_.Begin());
  writer_.Read(&request_, received_.Begin());
}

void ReadCall::OnRequestDue(bool fired) {
  if (fired && !finishing_) FinishWith(LateRequest());
}

void ReadCall::OnReceived(bool ok) {
  request_alarm_.Cancel();
  if (finishing_) return;
  if (!ok) return FinishWith(absl::CancelledError("no request came"));
  context_.metrics.CountRead();
  // Again: it may have taken its time to come.
  const auto permissions = Identify(context_, grpc_context_);
  if (!permissions.ok()) return FinishWith(permissions.status());
  auto request = TakeRequest();
  if (!request.ok()) return FinishWith(request.status());
  const absl::Status allowed = Allow(context_, *permissions, Rpc::kRead, request->run);
  if (!allowed.ok()) return FinishWith(allowed);
  auto stream = OpenStream(context_, request->run, RunQuota::StreamKind::kRead);
  if (!stream.ok()) return FinishWith(stream.status());
  stream_ = *std::move(stream);
  asked_ = *std::move(request);
  wait_until_ = std::min(system_clock::now() + context_.config.max_wait, grpc_context_.deadline() - kAnswerTime);
  StartTimers();
  Advance();
}

absl::StatusOr<ReadRequest> ReadCall::TakeRequest() {
  // The bytes, and a copy in one piece while they are parsed.
  const auto received = ReserveForRead(context_.read_requests, 2 * static_cast<int64_t>(request_.Length()));
  if (!received.ok()) return received.status();
  auto request = [&]() -> absl::StatusOr<ReadRequest> {
    const auto bytes = ReceivedBytes::From(request_);
    if (!bytes.ok()) return bytes.status();
    return ParseReadRequest(bytes->chain(), [&](int64_t memory) -> absl::Status {
      auto reservation = ReserveForRead(context_.read_requests, memory);
      if (!reservation.ok()) return reservation.status();
      request_memory_ = *std::move(reservation);
      return absl::OkStatus();
    });
  }();
  request_.Clear();
  return request;
}

absl::Status ReadCall::TakePlace() {
  if (waiting_place_ != nullptr) return absl::OkStatus();
  // Who is sent away is answered as when its wait is over: NOT_READY where it is.
  auto place = context_.waiting_reads.Enter(session_->run(), request_memory_.bytes(), [this] {
    sent_away_ = true;
    wait_alarm_.Cancel();
  });
  if (!place.ok()) {
    context_.metrics.CountQuotaRejection("waiting_reads");
    if (writes_ == 0) return place.status();
    waiting_is_over_ = true;
    return absl::OkStatus();
  }
  waiting_place_ = *std::move(place);
  return absl::OkStatus();
}

void ReadCall::StartTimers() {
  wait_alarm_.Set(loop_.queue(), wait_until_, wait_over_.Begin());
  stall_alarm_.Set(loop_.queue(), system_clock::now() + context_.config.stall_timeout, stall_check_.Begin());
  deadline_alarm_.Set(loop_.queue(), system_clock::now() + context_.config.max_deadline, deadline_.Begin());
}

void ReadCall::Advance() {
  if (writing_ || finishing_) return;
  if (system_clock::now() >= wait_until_) waiting_is_over_ = true;
  may_wait_ = !waiting_is_over_;
  absl::Status taken = work_.Start(context_.readers, OwnerOf(context_, grpc_context_), loop_, [this] { MakeStep(); });
  if (!taken.ok()) FinishWith(taken);
}

// Where it is to wait: watch first, then look again, so that a change between the two is not missed.
void ReadCall::MakeStep() {
  if (finishing_) return;
  const CallDeadline deadline(CallerDeadline(grpc_context_));
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
    if (change_.exchange(Change::kCame) == Change::kAwaited) changed_.Post(change_alarm_, loop_.queue());
  });
  // Without a watch (the run is gone) the next look says so.
  step_ = session_->Next(!watch.ok());
  if (step_.kind == ReadStep::Kind::kWait) new_watch_ = *std::move(watch);
}

void ReadCall::OnStep() {
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
  context_.metrics.CountSent(static_cast<int64_t>(step.header.size()), step.payload_bytes);
  ByteBufferBuilder builder;
  builder.Add(std::move(step.header));
  for (PayloadPart& part : step.payload) builder.Add(part.bytes, std::move(part.owner));
  writing_ = true;
  writer_.Write(builder.Build(), written_.Begin());
}

void ReadCall::OnWritten(bool ok) {
  writing_ = false;
  ++writes_;
  if (!ok) {
    return FinishWith(cut_off_.ok() ? absl::CancelledError("the reader is gone") : cut_off_);
  }
  Continue();
}

void ReadCall::Continue() {
  if (writing_ || finishing_ || work_.busy()) return;
  const auto permissions = Identify(context_, grpc_context_);
  if (!permissions.ok()) return FinishWith(permissions.status());
  const absl::Status allowed = Allow(context_, *permissions, Rpc::kRead, session_->run());
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
  if (!change_.compare_exchange_strong(before, Change::kAwaited)) changed_.Post(change_alarm_, loop_.queue());
}

// Ends the watch; the event that was promised for it comes in any case.
void ReadCall::Unpark() {
  watch_.reset();
  if (change_expected_ && change_.exchange(Change::kCame) == Change::kAwaited) {
    changed_.Post(change_alarm_, loop_.queue());
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

// Looks once per stall_timeout; a write that was open at two looks in a row is a reader that takes nothing.
void ReadCall::OnStallCheck(bool fired) {
  if (!fired || finishing_) return;
  if (writing_ && writes_ == writes_at_check_) {
    return CutOff(absl::DeadlineExceededError("the reader took nothing for stall-timeout"));
  }
  writes_at_check_ = writing_ ? writes_ : -1;
  stall_alarm_.Set(loop_.queue(), system_clock::now() + context_.config.stall_timeout, stall_check_.Begin());
}

void ReadCall::OnDeadline(bool fired) {
  if (fired && !finishing_) CutOff(OverDeadline(context_));
}

void ReadCall::CutOff(const absl::Status& why) {
  if (!writing_) return FinishWith(why);
  cut_off_ = why;
  grpc_context_.TryCancel();
}

// The call is over, by our Finish or because the reader went away.
void ReadCall::OnDone() {
  if (!writing_) FinishWith(absl::CancelledError("the reader is gone"));
}

void ReadCall::FinishWith(const absl::Status& status) {
  if (finishing_) return;
  finishing_ = true;
  record_->End(status);
  Unpark();
  if (!work_.busy()) connection_.reset();  // Otherwise with what it asked for: who ends calls does not have more done.
  waiting_place_.reset();
  request_alarm_.Cancel();
  wait_alarm_.Cancel();
  stall_alarm_.Cancel();
  deadline_alarm_.Cancel();
  writer_.Finish(ToGrpcStatus(status), ended_.Begin());
}

void ReadCall::Drain() {
  if (work_.busy() || finishing_ || writing_) return;
  const bool without_request = record_ && session_ == nullptr;
  if (change_expected_ || without_request) FinishWith(DrainingError());
}

}  // namespace routing_replay::server
