#include "server/service/served_call.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/support/method_handler.h>
#include <pthread.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/message/grpc_bytes.h"
#include "server/store/store_time.h"

namespace routing_replay::server {
namespace {

const google::protobuf::ServiceDescriptor& Description() {
  return *v1::SealRequest::descriptor()->file()->FindServiceByName("RoutingReplay");
}

absl::Status Counted(ServiceContext& context, absl::Status status) {
  if (!status.ok()) context.metrics.CountAccessRejection(status);
  return status;
}

absl::string_view Property(const grpc::AuthContext& connection, const char* name) {
  const std::vector<grpc::string_ref> values = connection.FindPropertyValues(name);
  return values.empty() ? absl::string_view() : absl::string_view(values[0].data(), values[0].size());
}

// Checks the client certificate. It belongs to the connection, so the result can be cached there. A Unix socket has
// none.
absl::Status CheckConnection(ServiceContext& context, const grpc::ServerContextBase& call) {
  if (context.client_certificates == nullptr) return absl::OkStatus();
  const auto connection = call.auth_context();
  const absl::string_view certificate = Property(*connection, GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (certificate.empty()) return absl::OkStatus();
  absl::Status status =
      context.client_certificates->Check(certificate, Property(*connection, GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME));
  if (!status.ok()) context.metrics.CountAccessRejection(absl::UnauthenticatedError(""));
  return status;
}

}  // namespace

void* CallEvent::Begin() {
  ++call_->open_operations_;
  return this;
}

void CallEvent::Post(grpc::Alarm& alarm, grpc::CompletionQueue* queue) {
  // A time long past: for "now", gRPC would wait until the next millisecond.
  alarm.Set(queue, gpr_time_0(GPR_CLOCK_MONOTONIC), this);
}

void CallLoop::Adopt(std::unique_ptr<Call> call) { calls_.insert(call.release()); }

void CallLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void CallLoop::Drain() { drain_alarm_.Set(queue_.get(), gpr_now(GPR_CLOCK_MONOTONIC), this); }

void CallLoop::ShutdownAndJoin() {
  if (thread_.joinable()) {
    end_alarm_.Set(queue_.get(), gpr_now(GPR_CLOCK_MONOTONIC), &end_alarm_);
    thread_.join();
  } else {
    queue_->Shutdown();
  }
  for (Call* call : calls_) delete call;
  calls_.clear();
}

void CallLoop::Run() {
  pthread_setname_np(pthread_self(), "call-loop");
  void* tag;
  bool ok, ending = false;
  while (queue_->Next(&tag, &ok)) {
    if (tag == this) {
      DrainCalls();
    } else if (tag == &end_alarm_) {
      ending = true;
    } else {
      HandleEvent(static_cast<CallEvent*>(tag), ok);
    }
    if (ending && calls_.empty()) {
      queue_->Shutdown();
      ending = false;
    }
  }
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
  // Draining a call may end others, but does not delete it here: deletion needs an event.
  const std::vector<Call*> calls(calls_.begin(), calls_.end());
  for (Call* call : calls) call->Drain();
}

RawService::RawService() {
  for (int i = 0; i < Description().method_count(); ++i) {
    MarkMethodStreamed(i, new grpc::internal::UnknownMethodHandler(""));  // A raw method does not need a handler.
    MarkMethodRaw(i);
  }
}

void RawService::RequestCall(const char* method, grpc::ServerContext* call, RawStream* stream,
                             grpc::CompletionQueue* call_queue, grpc::ServerCompletionQueue* queue, void* tag) {
  RequestAsyncBidiStreaming(Description().FindMethodByName(method)->index(), call, stream, call_queue, queue, tag);
}

absl::StatusOr<Permissions> Identify(ServiceContext& context, const grpc::ServerContextBase& call) {
  if (absl::Status status = CheckConnection(context, call); !status.ok()) return status;
  auto permissions = context.access.Identify(AuthorizationOf(call));
  if (!permissions.ok()) return Counted(context, permissions.status());
  return permissions;
}

std::string OwnerOf(const ServiceContext& context, const grpc::ServerContextBase& call) {
  const absl::string_view token = context.config.token_file.empty() ? "" : TokenOf(AuthorizationOf(call));
  return token.empty() ? call.peer() : std::string(token);
}

absl::Status Allow(ServiceContext& context, const Permissions& permissions, Rpc rpc, absl::string_view run) {
  return Counted(context, permissions.Check(RuleOf(rpc).any_of, run));
}

absl::Status Authorize(ServiceContext& context, const grpc::ServerContextBase& call, Rpc rpc, absl::string_view run) {
  const auto permissions = Identify(context, call);
  return permissions.ok() ? Allow(context, *permissions, rpc, run) : permissions.status();
}

absl::StatusOr<Permissions> AuthorizeAnywhere(ServiceContext& context, const grpc::ServerContextBase& call, Rpc rpc) {
  auto permissions = Identify(context, call);
  if (!permissions.ok()) return permissions;
  absl::Status allowed = Counted(context, permissions->CheckAnywhere(RuleOf(rpc).any_of));
  if (!allowed.ok()) return allowed;
  return permissions;
}

void ServedCall::Await(std::unique_ptr<ServedCall> call) {
  ServedCall* c = call.get();
  auto* queue = c->loop_.queue();
  c->loop_.Adopt(std::move(call));
  c->grpc_context_.AsyncNotifyWhenDone(&c->done_);
  c->home_.service.RequestCall(c->method_, &c->grpc_context_, &c->stream_, queue, queue, c->arrived_.Begin());
}

void ServedCall::OnArrived(bool ok) {
  if (!ok) return SetFinished();  // The server is shutting down.
  done_.Begin();                  // This event is only promised for calls that arrive.
  Await(Successor());
  record_.emplace(context_.calls, method_, grpc_context_);
  if (absl::Status status = Admit(); !status.ok()) return FinishWith(status);
  OnAdmitted();
}

absl::Status ServedCall::Admit() {
  if (context_.draining) return DrainingError();
  if (const auto permissions = Identify(context_, grpc_context_); !permissions.ok()) return permissions.status();
  auto entered = context_.connections.Enter(grpc_context_.peer());
  if (entered.ok()) connection_ = *std::move(entered);
  return entered.status();
}

void ServedCall::OnRequestDue(bool fired) {
  if (!fired || request_came_ || finishing_) return;
  FinishWith(absl::DeadlineExceededError("the request did not arrive within stall-timeout"));
}

void ServedCall::ReceiveRequest() {
  request_alarm_.Set(loop_.queue(), StallTime(), request_due_.Begin());
  stream_.Read(&request_, received_.Begin());
}

void ServedCall::OnReceived(bool ok) {
  request_came_ = true;
  request_alarm_.Cancel();
  if (finishing_) return;
  if (!ok) return FinishWith(absl::CancelledError("no request arrived"));
  OnRequest();
}

void ServedCall::Write(grpc::ByteBuffer message) {
  writing_ = true;
  stream_.Write(message, written_.Begin());
}

void ServedCall::OnStallCheck(bool fired) {
  if (!fired || finishing_) return;
  if (writing_ && writes_ == writes_at_look_) return OnTakesNothing();
  writes_at_look_ = writing_ ? writes_ : -1;
  OnStallLook();
  if (!finishing_) WatchForStalls();
}

void ServedCall::End(const absl::Status& status) {
  finishing_ = true;
  record_->End(status);
  for (grpc::Alarm* alarm : {&request_alarm_, &stall_alarm_}) alarm->Cancel();
}

void ServedCall::Finish(const absl::Status& status, bool keep_place) {
  End(status);
  if (!keep_place) connection_.reset();
  stream_.Finish(ToGrpcStatus(status), ended_.Begin());
}

namespace {

class UnaryCall final : public ServedCall {
 public:
  UnaryCall(const CallHome& home, const UnaryMethod& method, WorkerPool* workers)
      : ServedCall(home, method.name), unary_(method), workers_(workers) {}

  void Drain() override {
    if (has_arrived() && !finishing_ && !work_.busy()) FinishWith(DrainingError());
  }

 private:
  std::unique_ptr<ServedCall> Successor() const override {
    return std::make_unique<UnaryCall>(home_, unary_, workers_);
  }

  void OnRequest() override {
    if (const auto bytes = static_cast<int64_t>(request_.Length()); bytes > unary_.max_bytes) {
      return FinishWith(MakeError(
          absl::StatusCode::kResourceExhausted,
          absl::StrCat("the request has ", bytes, " bytes; at most ", unary_.max_bytes, "; split the request"),
          {.reason = Reason::kLength}));
    }
    const absl::Status taken = StartWork(workers_, [this] { Answer(); });
    if (taken.ok()) return;
    if (absl::IsResourceExhausted(taken)) context_.metrics.CountQuotaRejection("control_calls");
    FinishWith(taken);
  }

  // Runs on a worker's thread.
  void Answer() {
    const CallDeadline deadline(CallerDeadline(grpc_context_));
    if (gone_) {
      // The caller may have repeated the request: executing the cancelled one now could undo the effect of later calls.
      answer_ = absl::CancelledError("cancelled by the client while queued");
    } else if (context_.draining) {
      answer_ = DrainingError();
    } else {
      answer_ = unary_.answer(context_, {grpc_context_, *record_, memory_}, request_);
    }
  }

  void OnWorked() override {
    if (!answer_.ok()) {
      context_.metrics.CountStoreError(answer_.status());
      return FinishWith(answer_.status());
    }
    // The answer may be long, and is held until the caller reads it; so its place is kept, too.
    End(absl::OkStatus());
    answer_alarm_.Set(loop_.queue(), StallTime(), answer_due_.Begin());
    stream_.WriteAndFinish(*answer_, grpc::WriteOptions(), grpc::Status::OK, ended_.Begin());
  }

  void OnEnded() override {
    answer_alarm_.Cancel();
    connection_.reset();
    SetFinished();
  }

  void FinishWith(const absl::Status& status) override { Finish(status); }

  const UnaryMethod& unary_;
  WorkerPool* const workers_;
  CallEvent answer_due_{this, [this](bool fired) {
                          if (fired) grpc_context_.TryCancel();
                        }};
  grpc::Alarm answer_alarm_;
  absl::StatusOr<grpc::ByteBuffer> answer_;  // The worker's while one is busy …
  ByteReservation memory_;                   // … and the memory of the answer.
};

}  // namespace

void Listen(const CallHome& home, const UnaryMethod& method, WorkerPool* workers) {
  ServedCall::Await(std::make_unique<UnaryCall>(home, method, workers));
}

}  // namespace routing_replay::server
