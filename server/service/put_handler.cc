#include "server/service/put_handler.h"

#include <memory>
#include <utility>

#include "proto/transport/byte_buffer.h"
#include "proto/transport/grpc_status.h"
#include "routing_replay/wire/error_detail.h"
#include "server/service/authorize.h"
#include "server/service/caller_deadline.h"
#include "server/service/quotas.h"
#include "server/store/call_deadline.h"

namespace routing_replay {

void PutCall::Listen(ServiceContext& context, RawService& service, CallLoop& loop) {
  auto call = std::unique_ptr<PutCall>(new PutCall(context, service, loop));
  PutCall* c = call.get();
  loop.Adopt(std::move(call));
  service.RequestPut(&c->grpc_context_, &c->request_, &c->writer_, loop.queue(), loop.queue(), c->arrived_.Begin());
}

void PutCall::OnArrived(bool ok) {
  if (!ok) return SetFinished();  // The server is shutting down.
  Listen(context_, service_, loop_);
  record_.emplace(context_.calls, "Put", grpc_context_);
  const auto ack = Handle();
  record_->End(ack.status());
  if (!ack.ok()) return writer_.FinishWithError(ToGrpcStatus(ack.status()), ended_.Begin());
  ByteBufferBuilder builder;
  builder.Add(EncodeAppendAck(*ack));
  writer_.Finish(builder.Build(), grpc::Status::OK, ended_.Begin());
}

absl::StatusOr<AppendAck> PutCall::Handle() {
  if (context_.draining) return DrainingError();
  const CallDeadline deadline(CallerDeadline(grpc_context_));
  // Before anything is looked at that came from nobody knows whom.
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
  RunQuota::Hold nothing_promised;
  auto admitted = AdmitAppend(context_, request->run, *request, nothing_promised);
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

}  // namespace routing_replay
