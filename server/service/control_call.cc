#include "server/service/control_call.h"

#include <chrono>
#include <string>
#include <utility>

#include "proto/transport/grpc_status.h"
#include "server/service/authorize.h"
#include "server/service/caller_deadline.h"
#include "server/service/welcome.h"
#include "server/store/call_deadline.h"

namespace routing_replay {
namespace {

// Who shares the workers with others: the bearer of a token, or a connection where there are none.
std::string OwnerOf(const ServiceContext& context, const grpc::ServerContext& call) {
  const auto token = call.client_metadata().find("authorization");
  if (context.config.token_file.empty() || token == call.client_metadata().end()) return call.peer();
  return {token->second.data(), token->second.size()};
}

}  // namespace

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
  absl::Status status = Welcome(home_.context, grpc_context_, connection_);
  if (!status.ok()) return FinishWith(status);
  request_alarm_.Set(home_.loop.queue(), std::chrono::system_clock::now() + home_.context.config.stall_timeout,
                     request_due_.Begin());
  stream_.Read(&request_, received_.Begin());
}

void ControlCall::OnReceived(bool ok) {
  request_alarm_.Cancel();
  if (finishing_) return;
  if (!ok) return FinishWith(absl::CancelledError("no request came"));
  absl::Status taken = home_.workers.Run(OwnerOf(home_.context, grpc_context_), [this] { Answer(); });
  if (!taken.ok()) return FinishWith(taken);
  working_ = true;
  answered_.Begin();  // Its event is taken on this thread, so later.
}

void ControlCall::Answer() {
  const CallDeadline deadline(CallerDeadline(grpc_context_));
  if (home_.context.draining) {
    answer_ = DrainingError();
  } else {
    answer_ = method_.answer(home_.context, {grpc_context_, [this] { return gone_.load(); }}, request_);
  }
  answered_.Post(answered_alarm_, home_.loop.queue());
}

void ControlCall::OnAnswered() {
  if (!answer_.ok()) return FinishWith(answer_.status());
  End(absl::OkStatus());
  stream_.WriteAndFinish(*answer_, grpc::WriteOptions(), grpc::Status::OK, ended_.Begin());
}

void ControlCall::OnRequestDue(bool fired) {
  if (fired && !finishing_ && !working_) FinishWith(LateRequest());
}

void ControlCall::Drain() {
  if (record_ && !finishing_ && !working_) FinishWith(DrainingError());
}

void ControlCall::FinishWith(const absl::Status& status) {
  End(status);
  stream_.Finish(ToGrpcStatus(status), ended_.Begin());
}

void ControlCall::End(const absl::Status& status) {
  finishing_ = true;
  record_->End(status);
  connection_.reset();
  request_alarm_.Cancel();
}

}  // namespace routing_replay
