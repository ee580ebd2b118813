// Append: a stream of appends to many samples; each gets an ack, and long ones need credit first. See append.proto.
// Put: one append in one call.
#include <algorithm>
#include <cassert>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "proto/wire/message/grpc_bytes.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "server/service/grpc_stream.h"
#include "server/store/row_pieces.h"
#include "server/store/sample_rules.h"
#include "server/store/store_time.h"

namespace routing_replay::server {
namespace {

// If this many responses are not sent yet because the client does not read them, no more messages are read from it.
constexpr size_t kMaxUnsentResponses = 64;

absl::Status WindowIsFull(int64_t window) {
  ErrorDetail detail{.reason = Reason::kOverBudget, .field = "want_bytes"};
  detail.retry_after_ms = 0;
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("want_bytes: the stream already has the maximum of ", window, " bytes of credit; use it first"),
      detail);
}

AppendAck RejectionOf(uint64_t append_id, const std::string& sample, const absl::Status& error) {
  return {.append_id = append_id, .sample = sample, .error = WithSample(error, sample)};
}

absl::Status NotGranted(int64_t payload_bytes, int64_t credit) {
  ErrorDetail detail{.reason = Reason::kOverBudget, .field = "payload"};
  detail.retry_after_ms = 0;
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("payload: ", payload_bytes, " bytes sent, ", credit, " granted; ask for credit first"),
                   detail);
}

// Size of the payload after decompression: compressed bytes may take far more in the store than on the wire.
int64_t PayloadOf(const AppendRequest& request, int64_t max_payload_bytes) {
  const auto bytes = static_cast<int64_t>(request.payload.size());
  const auto* tensor = request.append ? std::get_if<TensorDescription>(&request.append->payload_kind) : nullptr;
  if (tensor == nullptr || tensor->compression == Compression::kNone) return bytes;
  return std::max(bytes, std::min(tensor->raw_size, max_payload_bytes));
}

// What the store will charge for the append, at most: assumes that the sample is new. 0 if the run does not exist; then
// the store rejects the append.
int64_t CostOf(ServiceContext& context, absl::string_view run, const AppendRequest& request) {
  const auto info = context.store.KnownRun(run);
  if (!info.ok() || !request.append) return 0;
  const AppendHeader& header = *request.append;
  const int64_t windows = header.rows.size() / info->options.block_rows + 1;
  int64_t cost = SampleContent::AppendBytes(windows, header.unrecorded.size());
  if (request.payload.size() > 0) {
    cost += PayloadOf(request, context.config.max_payload_bytes) +
            windows * MemoryHome::CostOf(*info->geometry, /*rows=*/0, Codec::kRaw);
  }
  return cost;
}

// Checks the run's limit against the memory that the store will charge for the request; `promised` is the part that was
// already admitted as credit. Commit the returned hold when the append is stored. Errors are those of RunQuota::Admit;
// `promised` is released then.
absl::StatusOr<RunQuota::Hold> AdmitAppend(ServiceContext& context, absl::string_view run, const AppendRequest& request,
                                           RunQuota::Hold promised) {
  if (!context.quota.limits_bytes()) return RunQuota::Hold();
  const int64_t cost = CostOf(context, run, request);
  if (cost <= promised.bytes()) return promised;
  RR_ASSIGN_OR_RETURN(auto more, context.quota.Admit(run, cost - promised.bytes()));
  promised.Merge(std::move(more));
  return promised;
}

// Processes and counts an append, which the request must have. `reservation` covers its payload, or is the error with
// which it is rejected. `promised` is the part of the run's limit that was admitted before.
AppendAck TakeAppend(ServiceContext& context, const std::string& run, AppendRequest request, RunQuota::Hold promised,
                     absl::StatusOr<ByteReservation> reservation) {
  const AppendHeader& append = *request.append;
  const auto payload_bytes = static_cast<int64_t>(request.payload.size());
  const Metrics::CountedAppend counted = {append.producer, append.weight_version, append.rows.size(), payload_bytes};
  auto hold = reservation.ok() ? AdmitAppend(context, run, request, std::move(promised)) : reservation.status();
  AppendAck ack = hold.ok() ? context.processor.Process(run, std::move(request), *std::move(reservation))
                            : RejectionOf(append.append_id, append.sample, hold.status());
  if (ack.error.ok()) hold->Commit();
  context.metrics.CountAppend(run, counted, ack);
  return ack;
}

class AppendCall final : public ServedCall {
 public:
  AppendCall(ServiceContext& context, CallLoop& loop, std::unique_ptr<CallStream> stream)
      : ServedCall(context, loop, "Append", std::move(stream)) {}

  void Drain() override {
    if (has_arrived()) FinishWith(DrainingError());
  }

 private:
  std::unique_ptr<ServedCall> Successor(std::unique_ptr<CallStream> stream) const override {
    return std::make_unique<AppendCall>(context_, loop_, std::move(stream));
  }
  void OnAdmitted() override;
  void OnWorked() override;
  void OnRead(bool ok);
  void OnWritten(bool ok) override;
  void OnStallLook() override;

  void ReadNext();
  // True if the client holds resources and has sent nothing useful since the last check.
  bool Stalls() const;
  // Switches to the message's run. From here on the call's credit counts against this run's limit, not the previous
  // run's. Errors of RunQuota::Admit. A run that does not exist is not an error, but sets not_there_.
  absl::Status EnterRun(const std::string& run);
  // Handles a message and returns the answer. An error ends the stream. May wait for the store.
  absl::StatusOr<AppendResponse> Handle(ReceivedMessage message);
  absl::StatusOr<AppendResponse> Reject(const ByteChain& message, const Permissions& permissions,
                                        const absl::Status& status);
  Credit Grant(uint64_t want_bytes);
  absl::StatusOr<ByteReservation> Promise(uint64_t want_bytes);
  // If a payload of at most kFreePayloadBytes exceeds the credit, grants the missing bytes now. Errors of Promise.
  // RESOURCE_EXHAUSTED (kOverBudget) if a longer payload exceeds the credit.
  absl::Status GrantMissing(int64_t payload_bytes);
  // Splits `bytes` off credit_ and returns them; with a limit of the run, moves as many from promised_ to `promised`.
  ByteReservation UseCredit(int64_t bytes, RunQuota::Hold& promised);
  void ReleaseCredit();
  AppendAck Process(AppendRequest request);
  // Records the ack if it is a rejection.
  void NoteRejection(const AppendAck& ack);
  // Ends the call with `status` after the message in progress is answered and everything queued is written.
  void FinishWith(const absl::Status& status) override;
  void Pump();
  // Adds the change of this stream's credit to the gauge, which has the credit of all streams.
  void TellCredit();

  CallEvent read_{this, [this](bool ok) { OnRead(ok); }};

  // While a worker is busy, only that worker uses the members from here to promised_, payload_bytes_, and
  // record_->Reject.
  absl::StatusOr<AppendResponse> answer_;
  ReceivedMessage message_;
  std::string run_;
  ByteReservation credit_;   // Granted and not used yet.
  std::string entered_run_;  // If runs have limits: the run whose limit includes the credit.
  // NOT_FOUND if EnterRun did not find the run. The append is then rejected with it, even if the run is created
  // meanwhile: the credit still counts against the previous run's limit.
  absl::Status not_there_;
  RunQuota::Hold promised_;  // If runs have limits: as many bytes of the run's limit as credit_ has.
  int64_t told_credit_ = 0;
  std::deque<std::string> outgoing_;
  int64_t payload_bytes_ = 0;  // Payload bytes charged to the credit so far.
  int64_t messages_ = 0;
  int64_t payload_bytes_at_check_ = 0;  // payload_bytes_ at the last check at which the stream held credit.
  int64_t messages_at_check_ = 0;
  bool held_credit_at_check_ = false;
  bool reading_ = false;
  std::optional<absl::Status> final_status_;
};

void AppendCall::OnAdmitted() {
  context_.metrics.CountStream(caller_.transport);
  WatchForStalls();
  ReadNext();
}

// Ends a stream that sent nothing useful for stall_timeout while it held credit, or before it named a run. Otherwise a
// stream may idle as long as it likes. OnTakesNothing ends one whose client does not take its answers.
void AppendCall::OnStallLook() {
  if (!final_status_ && !working() && Stalls()) {
    FinishWith(absl::DeadlineExceededError(absl::StrCat("the stream sent no payload within stall-timeout; its ",
                                                        credit_.bytes(), " bytes of credit were withdrawn")));
    if (finishing_) return;
  }
  messages_at_check_ = working() ? -1 : messages_;  // -1: a client that waits for an answer is not stalled.
  held_credit_at_check_ = !working() && credit_.bytes() > 0;
  if (held_credit_at_check_) payload_bytes_at_check_ = payload_bytes_;
}

// A client that holds credit must send payload bytes: messages without payload do not use credit.
bool AppendCall::Stalls() const {
  if (run_.empty() && messages_ == messages_at_check_) return true;
  return held_credit_at_check_ && credit_.bytes() > 0 && payload_bytes_ == payload_bytes_at_check_;
}

absl::Status AppendCall::EnterRun(const std::string& run) {
  if (!run.empty()) run_ = run;
  RunQuota& quota = context_.quota;
  not_there_ = absl::OkStatus();
  if (!quota.limits_bytes() || run_ == entered_run_) return absl::OkStatus();
  if (absl::Status found = context_.store.GetRun(run_).status(); absl::IsNotFound(found)) {
    not_there_ = std::move(found);
    return absl::OkStatus();
  }
  if (credit_.bytes() > 0) {
    RR_ASSIGN_OR_RETURN(auto promised, quota.Admit(run_, credit_.bytes()));
    promised_ = std::move(promised);
  }
  entered_run_ = run_;
  return absl::OkStatus();
}

void AppendCall::ReadNext() {
  if (reading_ || working() || final_status_ || outgoing_.size() >= kMaxUnsentResponses) return;
  if (context_.draining) return FinishWith(DrainingError());
  reading_ = true;
  stream_->Receive(std::max(credit_.bytes(), kFreePayloadBytes), read_);
}

void AppendCall::OnRead(bool ok) {
  reading_ = false;
  ++messages_;
  if (finishing_ || final_status_) return;
  if (!ok) return FinishWith(absl::OkStatus());  // The client has ended its side, or is gone.
  auto message = stream_->Take();
  if (!message.ok()) return FinishWith(message.status());
  message_ = *std::move(message);
  const absl::Status taken = StartWork(context_.writers, [this] { answer_ = Handle(std::exchange(message_, {})); });
  if (!taken.ok()) FinishWith(taken);
}

void AppendCall::OnWorked() {
  TellCredit();
  if (answer_.ok() && (answer_->ack || answer_->credit)) outgoing_.push_back(EncodeAppendResponse(*answer_));
  if (!answer_.ok() || final_status_) return FinishWith(answer_.status());
  Pump();
  ReadNext();
}

absl::StatusOr<AppendResponse> AppendCall::Handle(ReceivedMessage message) {
  const CallDeadline deadline(caller_.deadline);
  // The token is checked again for every message, so that a revoked token ends a long-lived stream.
  RR_ASSIGN_OR_RETURN(const auto permissions, Identify(context_, caller_));
  auto request = ParseAppendRequest(message.bytes);
  if (!request.ok()) return Reject(message.bytes, permissions, request.status());
  request->payload_parts = std::move(message.parts);
  const std::string& run = request->run.empty() ? run_ : request->run;
  if (absl::Status allowed = Allow(context_, permissions, Rpc::kAppend, run); !allowed.ok()) {
    if (!request->append) return allowed;
    return Reject(message.bytes, permissions, allowed);
  }
  RR_RETURN_IF_ERROR(EnterRun(run));
  const uint64_t want_bytes = request->want_bytes;
  AppendResponse response;
  if (request->append) response.ack = Process(*std::move(request));
  if (want_bytes > 0) response.credit = Grant(want_bytes);
  return response;
}

// The message was malformed, or is not allowed. If it names its append, that append is rejected and the stream
// continues.
absl::StatusOr<AppendResponse> AppendCall::Reject(const ByteChain& message, const Permissions& permissions,
                                                  const absl::Status& status) {
  const auto rejected = ParseRejectedAppend(message);
  if (!rejected) return status;
  if (!rejected->run.empty()) run_ = rejected->run;
  AppendResponse response;
  response.ack = RejectionOf(rejected->append_id, rejected->sample, status);
  // The client has already counted the payload against its credit.
  RunQuota::Hold unused;
  UseCredit(std::min<int64_t>(static_cast<int64_t>(rejected->payload_bytes), credit_.bytes()), unused);
  context_.metrics.CountAppend(run_, {}, *response.ack);
  NoteRejection(*response.ack);
  if (rejected->want_bytes > 0) {
    // A malformed message may still contain a valid request for credit; callers that may not append get none.
    const absl::Status allowed = permissions.Check(RuleOf(Rpc::kAppend).any_of, run_);
    const absl::Status entered = allowed.ok() ? EnterRun(run_) : allowed;
    response.credit = entered.ok() ? Grant(rejected->want_bytes) : Credit{.granted_bytes = 0, .rejection = entered};
  }
  return response;
}

Credit AppendCall::Grant(uint64_t want_bytes) {
  auto reservation = Promise(want_bytes);
  (reservation.ok() ? context_.metrics.credits : context_.metrics.credit_rejections).Increment();
  if (!reservation.ok()) return {.granted_bytes = 0, .rejection = reservation.status()};
  const auto granted = static_cast<uint64_t>(reservation->bytes());
  credit_.Merge(*std::move(reservation));
  return {.granted_bytes = granted};
}

// Grants at most `want_bytes`: as much as the stream's window and the run's limit allow, if the budget has that many.
absl::StatusOr<ByteReservation> AppendCall::Promise(uint64_t want_bytes) {
  // Large enough for the largest message, which could otherwise never be sent.
  const int64_t window = std::max(context_.config.stream_window_bytes, context_.config.max_message_bytes);
  const int64_t room = window - credit_.bytes();
  if (room <= 0) return WindowIsFull(window);
  if (!not_there_.ok()) return not_there_;
  const auto wanted = static_cast<int64_t>(std::min<uint64_t>(want_bytes, room));
  RR_ASSIGN_OR_RETURN(auto promised, context_.quota.AdmitUpTo(run_, wanted));
  const int64_t bytes = context_.quota.limits_bytes() ? promised.bytes() : wanted;
  auto reservation = ReserveOrMakeRoom(context_.store, context_.budget, bytes);
  if (reservation.ok()) promised_.Merge(std::move(promised));
  return reservation;
}

// promised_ and credit_ shrink by the same amount. If promised_ shrank by more, the run would get the difference of its
// limit twice.
ByteReservation AppendCall::UseCredit(int64_t bytes, RunQuota::Hold& promised) {
  payload_bytes_ += bytes;
  ByteReservation used = credit_.Split(bytes);
  if (context_.quota.limits_bytes()) promised = promised_.Split(bytes);
  assert(!context_.quota.limits_bytes() || promised_.bytes() == credit_.bytes());
  return used;
}

void AppendCall::ReleaseCredit() {
  credit_.Release();
  promised_.Release();
  TellCredit();
}

absl::Status AppendCall::GrantMissing(int64_t payload_bytes) {
  const int64_t credit = credit_.bytes(), missing = payload_bytes - credit;
  if (missing <= 0) return absl::OkStatus();
  if (payload_bytes > kFreePayloadBytes) return NotGranted(payload_bytes, credit);
  RR_ASSIGN_OR_RETURN(auto more, Promise(missing));
  credit_.Merge(std::move(more));
  return credit_.bytes() >= payload_bytes ? absl::OkStatus() : NotGranted(payload_bytes, credit);
}

AppendAck AppendCall::Process(AppendRequest request) {
  const auto payload_bytes = static_cast<int64_t>(request.payload.size());
  const absl::Status granted = GrantMissing(payload_bytes);
  RunQuota::Hold promised;
  // The credit is used even if the append is rejected, because the client has subtracted it.
  absl::StatusOr<ByteReservation> reservation = UseCredit(std::min(payload_bytes, credit_.bytes()), promised);
  if (!not_there_.ok()) reservation = not_there_;
  if (!granted.ok()) reservation = granted;
  AppendAck ack = TakeAppend(context_, run_, std::move(request), std::move(promised), std::move(reservation));
  NoteRejection(ack);
  return ack;
}

void AppendCall::NoteRejection(const AppendAck& ack) {
  if (ack.error.ok()) return;
  record_->Reject(ack.error);
  context_.metrics.CountStoreError(ack.error);
}

void AppendCall::FinishWith(const absl::Status& status) {
  if (!final_status_) final_status_ = status;
  if (working()) return;  // OnWorked will call this again.
  ReleaseCredit();
  Pump();
}

void AppendCall::Pump() {
  if (writing() || finishing_) return;
  if (!outgoing_.empty()) {
    Write({.header = std::move(outgoing_.front())});
    outgoing_.pop_front();
  } else if (final_status_ && !working()) {
    Finish(*final_status_);
  }
}

void AppendCall::TellCredit() {
  context_.metrics.credit_bytes.Increment(static_cast<double>(credit_.bytes() - told_credit_));
  told_credit_ = credit_.bytes();
}

void AppendCall::OnWritten(bool ok) {
  if (!ok) {
    outgoing_.clear();
    final_status_ = absl::CancelledError("the client is gone");
    return FinishWith(*final_status_);
  }
  Pump();
  ReadNext();
}

absl::StatusOr<grpc::ByteBuffer> AnswerPut(ServiceContext& context, const UnaryCaller& caller,
                                           grpc::ByteBuffer& message) {
  RR_ASSIGN_OR_RETURN(auto bytes, ReceivedBytes::From(message));
  RR_ASSIGN_OR_RETURN(auto request, ParseAppendRequest(bytes.chain()));
  if (!request.append) return Invalid("append", "missing");
  const std::string run = request.run;
  if (absl::Status allowed = Authorize(context, caller.caller, Rpc::kPut, run); !allowed.ok()) {
    return WithSample(allowed, request.append->sample);
  }
  auto reservation = ReserveOrMakeRoom(context.store, context.budget, static_cast<int64_t>(request.payload.size()));
  const AppendAck ack = TakeAppend(context, run, std::move(request), /*promised=*/{}, std::move(reservation));
  if (!ack.error.ok()) return ack.error;
  ByteBufferBuilder builder;
  builder.Add(EncodeAppendAck(ack));
  return builder.Build();
}

}  // namespace

void ServeAppend(ServiceContext& context, CallLoop& loop, std::unique_ptr<CallStream> stream) {
  ServedCall::Await(std::make_unique<AppendCall>(context, loop, std::move(stream)));
}

const UnaryMethod& PutMethod() {
  static const auto& method = *new UnaryMethod{"Put", AnswerPut, /*max_bytes=*/INT64_MAX};
  return method;
}

}  // namespace routing_replay::server
