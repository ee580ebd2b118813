#include "server/service/put_handler.h"

#include <chrono>
#include <memory>
#include <utility>

#include "proto/transport/byte_buffer.h"
#include "proto/transport/grpc_status.h"
#include "routing_replay/wire/error_detail.h"
#include "server/service/authorize.h"
#include "server/service/caller_deadline.h"
#include "server/service/quotas.h"
#include "server/service/welcome.h"
#include "server/store/call_deadline.h"

namespace routing_replay::server {

void PutCall::Listen(ServiceContext& context, RawService& service, CallLoop& loop) {
  auto call = std::unique_ptr<PutCall>(new PutCall(context, service, loop));
  PutCall* c = call.get();
  loop.Adopt(std::move(call));
  service.RequestCall("Put", &c->grpc_context_, &c->stream_, loop.queue(), loop.queue(), c->arrived_.Begin());
}

void PutCall::OnArrived(bool ok) {
  if (!ok) return SetFinished();  // The server is shutting down.
  Listen(context_, service_, loop_);
  record_.emplace(context_.calls, "Put", grpc_context_);
  if (absl::Status status = Welcome(context_, grpc_context_, connection_); !status.ok()) return FinishWith(status);
  request_alarm_.Set(loop_.queue(), std::chrono::system_clock::now() + context_.config.stall_timeout,
                     request_due_.Begin());
  stream_.Read(&request_, received_.Begin());
}

void PutCall::OnReceived(bool ok) {
  request_alarm_.Cancel();
  if (finishing_) return;
  if (!ok) return FinishWith(absl::CancelledError("no request came"));
  absl::Status taken =
      work_.Start(context_.writers, OwnerOf(context_, grpc_context_), loop_, [this] { ack_ = Handle(); });
  if (!taken.ok()) FinishWith(taken);
}

void PutCall::OnHandled() {
  if (!ack_.ok()) return FinishWith(ack_.status());
  End(absl::OkStatus());
  ByteBufferBuilder builder;
  builder.Add(EncodeAppendAck(*ack_));
  stream_.WriteAndFinish(builder.Build(), grpc::WriteOptions(), grpc::Status::OK, ended_.Begin());
}

void PutCall::OnRequestDue(bool fired) {
  if (fired && !finishing_ && !work_.busy()) FinishWith(LateRequest());
}

void PutCall::Drain() {
  if (record_ && !finishing_ && !work_.busy()) FinishWith(DrainingError());
}

void PutCall::FinishWith(const absl::Status& status) {
  End(status);
  stream_.Finish(ToGrpcStatus(status), ended_.Begin());
}

void PutCall::End(const absl::Status& status) {
  finishing_ = true;
  record_->End(status);
  connection_.reset();
  request_alarm_.Cancel();
}

absl::StatusOr<AppendAck> PutCall::Handle() {
  const CallDeadline deadline(CallerDeadline(grpc_context_));
  // Anew: it may have taken its time to come.
  const auto permissions = Identify(context_, grpc_context_);
  if (!permissions.ok()) return permissions.status();
  auto bytes = ReceivedBytes::From(request_);
  if (!bytes.ok()) return bytes.status();
  auto request = ParseAppendRequest(bytes->chain());
  if (!request.ok()) return request.status();
  if (!request->append) {
    return MakeError(absl::StatusCode::kInvalidArgument, "append: missing",
                     {.reason = Reason::kField, .field = "append"});
  }
  if (absl::Status allowed = Allow(context_, *permissions, Rpc::kPut, request->run); !allowed.ok()) {
    return WithSample(allowed, request->append->sample);
  }
  const auto payload_bytes = static_cast<int64_t>(request->payload.size());
  const int64_t rows = request->append->rows.size();
  auto admitted = AdmitAppend(context_, request->run, *request, /*promised=*/{});
  if (!admitted.ok()) return WithSample(admitted.status(), request->append->sample);
  auto reservation = ReserveOrMakeRoom(context_.store, context_.budget, payload_bytes);
  AppendAck ack;
  if (reservation.ok()) {
    const std::string run = request->run;
    ack = context_.processor.Process(run, *std::move(request), *std::move(reservation));
  } else {
    ack.error = WithSample(reservation.status(), request->append->sample);
  }
  context_.metrics.CountAppend(ack, rows, payload_bytes);
  if (!ack.error.ok()) return ack.error;
  admitted->Commit();
  return ack;
}

}  // namespace routing_replay::server
