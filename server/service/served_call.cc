#include "server/service/served_call.h"

#include <utility>

#include "proto/wire/status_macros.h"
#include "server/store/store_time.h"

namespace routing_replay::server {

namespace {

absl::Status Counted(ServiceContext& context, absl::Status status) {
  if (!status.ok()) context.metrics.CountAccessRejection(status);
  return status;
}

}  // namespace

CallEvent* CallEvent::Begin() {
  ++call_->open_operations_;
  return this;
}

void CallLoop::HandleEvent(CallEvent* event, bool ok) {
  Call* call = event->call_;
  --call->open_operations_;
  event->on_event_(ok);
  if (call->finished_ && call->open_operations_ == 0) {
    calls_.erase(call);
    delete call;
  }
}

void CallLoop::DrainCalls() {
  // Iterates over a copy. Drain may end calls, but does not delete them: calls are deleted only after an event.
  const std::vector<Call*> calls(calls_.begin(), calls_.end());
  for (Call* call : calls) call->Drain();
}

void CallLoop::DeleteCalls() {
  for (Call* call : calls_) delete call;
  calls_.clear();
}

absl::StatusOr<Permissions> Identify(ServiceContext& context, const Caller& caller) {
  auto permissions = context.access.Identify(caller.authorization);
  if (!permissions.ok()) return Counted(context, permissions.status());
  return permissions;
}

std::string OwnerOf(const ServiceContext& context, const Caller& caller) {
  const absl::string_view token = context.config.token_file.empty() ? "" : TokenOf(caller.authorization);
  return token.empty() ? caller.peer : std::string(token);
}

absl::Status Allow(ServiceContext& context, const Permissions& permissions, Rpc rpc, absl::string_view run) {
  return Counted(context, permissions.Check(RuleOf(rpc).any_of, run));
}

absl::Status Authorize(ServiceContext& context, const Caller& caller, Rpc rpc, absl::string_view run) {
  const auto permissions = Identify(context, caller);
  return permissions.ok() ? Allow(context, *permissions, rpc, run) : permissions.status();
}

absl::StatusOr<Permissions> AuthorizeAnywhere(ServiceContext& context, const Caller& caller, Rpc rpc) {
  auto permissions = Identify(context, caller);
  if (!permissions.ok()) return permissions;
  absl::Status allowed = Counted(context, permissions->CheckAnywhere(RuleOf(rpc).any_of));
  if (!allowed.ok()) return allowed;
  return permissions;
}

void ServedCall::Await(std::unique_ptr<ServedCall> call) {
  ServedCall* c = call.get();
  c->loop_.Adopt(std::move(call));
  c->stream_->Arrive(c->arrived_, c->done_);
}

void ServedCall::OnArrived(bool ok) {
  if (!ok) return SetFinished();  // The server is shutting down.
  done_.Begin();                  // done_ is delivered only for calls that arrive.
  if (std::unique_ptr<CallStream> next = stream_->Next()) Await(Successor(std::move(next)));
  caller_ = stream_->caller();
  record_.emplace(context_.calls, method_, caller_);
  if (absl::Status status = Admit(); !status.ok()) return FinishWith(status);
  OnAdmitted();
}

absl::Status ServedCall::Admit() {
  if (context_.draining) return DrainingError();
  if (const auto permissions = Identify(context_, caller_); !permissions.ok()) return permissions.status();
  auto entered = context_.connections.Enter(caller_.peer);
  if (entered.ok()) connection_ = *std::move(entered);
  return entered.status();
}

void ServedCall::ReceiveRequest() {
  awaits_request_ = true;
  WatchForStalls();
  stream_->Receive(/*most_payload=*/0, received_);
}

void ServedCall::OnReceived(bool ok) {
  awaits_request_ = false;
  if (finishing_) return;
  if (!ok) return FinishWith(absl::CancelledError("the client ended the call without a request"));
  OnRequest();
}

absl::Status ServedCall::StartWork(WorkerPool* workers, std::function<void()> work) {
  working_ = true;
  if (workers == nullptr) {
    work();
    EndWork();
    return absl::OkStatus();
  }
  absl::Status taken = workers->Run(OwnerOf(context_, caller_), [this, work = std::move(work)] {
    work();
    loop_.Post(work_alarm_, worked_);  // Must be last: the call may be destroyed afterwards.
  });
  working_ = taken.ok();
  if (taken.ok()) worked_.Begin();  // The event is handled later, on this same thread.
  return taken;
}

void ServedCall::EndWork() {
  working_ = false;
  OnWorked();
}

void ServedCall::Write(SentMessage message) {
  writing_ = true;
  stream_->Send(std::move(message), written_);
}

void ServedCall::OnStallCheck(bool fired) {
  if (!fired || finishing_) return;
  if (awaits_request_) {
    return FinishWith(absl::DeadlineExceededError("the request did not arrive within stall-timeout"));
  }
  if (writing_ && writes_ == writes_at_look_) return OnTakesNothing();
  writes_at_look_ = writing_ ? writes_ : -1;
  OnStallLook();
  if (!finishing_) WatchForStalls();
}

void ServedCall::End(const absl::Status& status) {
  finishing_ = true;
  record_->End(status);
  stall_alarm_.Cancel();
}

void ServedCall::Finish(const absl::Status& status, bool keep_place) {
  End(status);
  if (!keep_place) connection_.reset();
  stream_->Finish(status, ended_);
}

}  // namespace routing_replay::server
