#include "server/service/call_loop.h"

#include <grpcpp/support/method_handler.h>
#include <pthread.h>

#include <vector>

namespace routing_replay::server {
namespace {

const google::protobuf::ServiceDescriptor& Description() {
  return *v1::SealRequest::descriptor()->file()->FindServiceByName("RoutingReplay");
}

}  // namespace

void* CallEvent::Begin() {
  ++call_->open_operations_;
  return this;
}

void CallEvent::Post(grpc::Alarm& alarm, grpc::CompletionQueue* queue) {
  // Long past: for now, gRPC would wait for the next millisecond.
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
  // A call may end others' existence but not its own here: deletion waits for an event.
  const std::vector<Call*> calls(calls_.begin(), calls_.end());
  for (Call* call : calls) call->Drain();
}

RawService::RawService() {
  for (int i = 0; i < Description().method_count(); ++i) {
    MarkMethodStreamed(i, new grpc::internal::UnknownMethodHandler(""));  // Which a raw method does without again.
    MarkMethodRaw(i);
  }
}

void RawService::RequestCall(const char* method, grpc::ServerContext* call, RawStream* stream,
                             grpc::CompletionQueue* call_queue, grpc::ServerCompletionQueue* queue, void* tag) {
  RequestAsyncBidiStreaming(Description().FindMethodByName(method)->index(), call, stream, call_queue, queue, tag);
}

}  // namespace routing_replay::server
