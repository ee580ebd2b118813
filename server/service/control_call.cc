#include "server/service/control_call.h"

#include <chrono>
#include <utility>

#include "proto/transport/transport.h"
#include "server/service/service_context.h"
#include "server/store/store_time.h"

namespace routing_replay::server {

void ControlCall::Listen(const Home& home, const ControlMethod& method) {
  auto call = std::unique_ptr<ControlCall>(new ControlCall(home, method));
  ControlCall* c = call.get();
  home.loop.Adopt(std::move(call));
  c->grpc_context_.AsyncNotifyWhenDone(&c->done_);
  auto* queue = home.loop.queue();
  home.service.RequestCall(method.name, &c->grpc_context_, &c->stream_, queue, queue, c->arrived_.Begin());
}

void ControlCall::OnArrived(bool ok) {
  if (!ok) return SetFinished();  // The server is shutting down.
  done_.Begin();                  // Promised only for calls that arrive.
  Listen(home_, method_);
  record_.emplace(home_.context.calls, method_.name, grpc_context_);
  absl::Status status = AdmitCall(home_.context, grpc_context_, connection_);
  if (!status.ok()) return FinishWith(status);
  request_alarm_.Set(home_.loop.queue(), std::chrono::system_clock::now() + home_.context.config.stall_timeout,
                     request_due_.Begin());
  stream_.Read(&request_, received_.Begin());
}

void ControlCall::OnReceived(bool ok) {
  request_alarm_.Cancel();
  if (finishing_) return;
  if (!ok) return FinishWith(absl::CancelledError("no request came"));
  if (absl::Status length = CheckControlBytes(request_.Length()); !length.ok()) return FinishWith(length);
  absl::Status taken = home_.workers.Run(OwnerOf(home_.context, grpc_context_), [this] { Answer(); });
  if (!taken.ok()) {
    if (absl::IsResourceExhausted(taken)) home_.context.metrics.CountQuotaRejection("control_calls");
    return FinishWith(taken);
  }
  working_ = true;
  answered_.Begin();  // Its event is taken on this thread, so later.
}

void ControlCall::Answer() {
  const CallDeadline deadline(CallerDeadline(grpc_context_));
  if (gone_) {
    // Its caller may have asked again: what it does now, it would do to what came after.
    answer_ = absl::CancelledError("cancelled by the client while queued");
  } else if (home_.context.draining) {
    answer_ = DrainingError();
  } else {
    answer_ =
        method_.answer(home_.context, {grpc_context_, *record_, [this] { return gone_.load(); }, memory_}, request_);
  }
  answered_.Post(answered_alarm_, home_.loop.queue());
}

void ControlCall::OnAnswered() {
  if (!answer_.ok()) {
    home_.context.metrics.CountStoreError(answer_.status());
    return FinishWith(answer_.status());
  }
  // The answer may be long, and is held until the caller takes it. So its place is, too.
  End(absl::OkStatus());
  answer_alarm_.Set(home_.loop.queue(), std::chrono::system_clock::now() + home_.context.config.stall_timeout,
                    answer_due_.Begin());
  stream_.WriteAndFinish(*answer_, grpc::WriteOptions(), grpc::Status::OK, ended_.Begin());
}

void ControlCall::OnAnswerDue(bool fired) {
  if (fired) grpc_context_.TryCancel();
}

void ControlCall::OnEnded() {
  answer_alarm_.Cancel();
  connection_.reset();
  SetFinished();
}

void ControlCall::OnRequestDue(bool fired) {
  if (fired && !finishing_ && !working_) FinishWith(LateRequest());
}

void ControlCall::Drain() {
  if (record_ && !finishing_ && !working_) FinishWith(DrainingError());
}

void ControlCall::FinishWith(const absl::Status& status) {
  End(status);
  connection_.reset();
  stream_.Finish(ToGrpcStatus(status), ended_.Begin());
}

void ControlCall::End(const absl::Status& status) {
  finishing_ = true;
  record_->End(status);
  request_alarm_.Cancel();
}

}  // namespace routing_replay::server
