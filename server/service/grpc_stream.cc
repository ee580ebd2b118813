#include "server/service/grpc_stream.h"

#include <grpcpp/support/method_handler.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/message/grpc_bytes.h"
#include "proto/wire/status_macros.h"
#include "server/store/store_time.h"

namespace routing_replay::server {
namespace {

const google::protobuf::ServiceDescriptor& Description() {
  return *v1::SealRequest::descriptor()->file()->FindServiceByName("RoutingReplay");
}

absl::string_view View(const grpc::string_ref& text) { return {text.data(), text.size()}; }

// A time in the past, so that the alarm fires at once. With "now", gRPC would start a timer for the next millisecond.
// Its timers follow the time of day: if the clock is set back by an hour, the alarm would be an hour late.
gpr_timespec AtOnce() { return gpr_time_0(GPR_CLOCK_MONOTONIC); }

// Converts a deadline. A call without one has a deadline in the infinite future, which would overflow Clock::Time (292
// years in nanoseconds); it becomes 200 years after the start of the machine.
Clock::Time TimeOf(gpr_timespec deadline) {
  const gpr_timespec time = gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC);
  constexpr int64_t kForEver = int64_t{200} * 365 * 24 * 3600;
  return Clock::Time(std::chrono::seconds(std::min(time.tv_sec, kForEver)) + std::chrono::nanoseconds(time.tv_nsec));
}

}  // namespace

gpr_timespec GrpcTime(Clock::Time time) {
  return gpr_time_from_nanos(std::chrono::nanoseconds(time.time_since_epoch()).count(), GPR_CLOCK_MONOTONIC);
}

void GrpcLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

// Everything that this thread did before Set happens before the loop's thread gets the event: the completion queue
// ensures that. ThreadSanitizer cannot see it, so HandOver tells it.
void GrpcLoop::Post(CallAlarm& alarm, CallEvent& event) {
  HandOver(&event);
  alarm.grpc_.Set(queue_.get(), AtOnce(), &event);
}

void GrpcLoop::SetAlarm(CallAlarm& alarm, Clock::Time time, CallEvent& event) {
  alarm.grpc_.Set(queue_.get(), GrpcTime(time), &event);
}

void GrpcLoop::Drain() { drain_alarm_.Set(queue_.get(), AtOnce(), this); }

void GrpcLoop::ShutdownAndJoin() {
  if (thread_.joinable()) {
    end_alarm_.Set(queue_.get(), AtOnce(), &end_alarm_);
    thread_.join();
  } else {
    queue_->Shutdown();
  }
  DeleteCalls();
}

void GrpcLoop::Run() {
  pthread_setname_np(pthread_self(), "call-loop");
  void* tag;
  bool ok, ending = false;
  while (queue_->Next(&tag, &ok)) {
    if (tag == this) {
      DrainCalls();
    } else if (tag == &end_alarm_) {
      ending = true;
    } else {
      TakeOver(tag);
      HandleEvent(static_cast<CallEvent*>(tag), ok);
    }
    if (ending && empty()) {
      queue_->Shutdown();
      ending = false;
    }
  }
}

RawService::RawService() {
  for (int i = 0; i < Description().method_count(); ++i) {
    MarkMethodStreamed(i, new grpc::internal::UnknownMethodHandler(""));  // Not used: a raw method has no handler.
    MarkMethodRaw(i);
  }
}

void RawService::RequestCall(const char* method, grpc::ServerContext* call, RawStream* stream,
                             grpc::CompletionQueue* call_queue, grpc::ServerCompletionQueue* queue, void* tag) {
  RequestAsyncBidiStreaming(Description().FindMethodByName(method)->index(), call, stream, call_queue, queue, tag);
}

void GrpcStream::Arrive(CallEvent& arrived, CallEvent& gone) {
  context_.AsyncNotifyWhenDone(&gone);
  service_.RequestCall(method_, &context_, &stream_, loop_.queue(), loop_.queue(), arrived.Begin());
}

Caller GrpcStream::caller() const {
  const auto& metadata = context_.client_metadata();
  Caller caller{.peer = context_.peer(), .deadline = TimeOf(context_.raw_deadline())};
  if (metadata.count("authorization") == 1) {
    caller.authorization = std::string(View(metadata.find("authorization")->second));
  }
  const auto connection = context_.auth_context();
  if (connection == nullptr) return caller;
  for (const grpc::string_ref& name : connection->GetPeerIdentity()) {
    absl::StrAppend(&caller.certificate_names, caller.certificate_names.empty() ? "" : " ", View(name));
  }
  return caller;
}

absl::StatusOr<ReceivedMessage> GrpcStream::Take() {
  RR_ASSIGN_OR_RETURN(auto bytes, ReceivedBytes::From(incoming_));
  auto owner = std::make_shared<ReceivedBytes>(std::move(bytes));
  return ReceivedMessage{.bytes = owner->chain(), .owner = owner};
}

void GrpcStream::Send(SentMessage message, CallEvent& sent) {
  ByteBufferBuilder builder;
  builder.Add(std::move(message.header));
  for (PayloadPart& part : message.payload) builder.Add(part.bytes, std::move(part.owner));
  stream_.Write(builder.Build(), sent.Begin());
}

void GrpcStream::Finish(const absl::Status& status, CallEvent& ended) {
  stream_.Finish(ToGrpcStatus(status), ended.Begin());
}

namespace {

class UnaryCall final : public ServedCall {
 public:
  UnaryCall(ServiceContext& context, CallLoop& loop, const UnaryMethod& method, WorkerPool* workers,
            std::unique_ptr<CallStream> stream)
      : ServedCall(context, loop, method.name, std::move(stream)), unary_(method), workers_(workers) {}

  void Drain() override {
    if (has_arrived() && !finishing_ && !working()) FinishWith(DrainingError());
  }

 private:
  std::unique_ptr<ServedCall> Successor(std::unique_ptr<CallStream> stream) const override {
    return std::make_unique<UnaryCall>(context_, loop_, unary_, workers_, std::move(stream));
  }
  GrpcStream& grpc() { return static_cast<GrpcStream&>(*stream_); }

  void OnRequest() override {
    if (const auto bytes = static_cast<int64_t>(grpc().incoming().Length()); bytes > unary_.max_bytes) {
      return FinishWith(MakeError(
          absl::StatusCode::kResourceExhausted,
          absl::StrCat("the request must have at most ", unary_.max_bytes, " bytes, got ", bytes, "; split it"),
          {.reason = Reason::kLength}));
    }
    const absl::Status taken = StartWork(workers_, [this] { Answer(); });
    if (taken.ok()) return;
    if (absl::IsResourceExhausted(taken)) context_.metrics.CountQuotaRejection("control_calls");
    FinishWith(taken);
  }

  // Runs on a worker's thread.
  void Answer() {
    const CallDeadline deadline(caller_.deadline);
    if (gone_) {
      // The caller may have repeated the request: executing the cancelled one now could undo the effect of later calls.
      answer_ = absl::CancelledError("cancelled by the client while queued");
    } else if (context_.draining) {
      answer_ = DrainingError();
    } else {
      answer_ = unary_.answer(context_, {caller_, *record_, memory_, gone_}, grpc().incoming());
    }
  }

  void OnWorked() override {
    if (!answer_.ok()) {
      context_.metrics.CountStoreError(answer_.status());
      return FinishWith(answer_.status());
    }
    // A long answer is held until the caller reads it. Until then the call counts as one of its connection's open
    // calls.
    End(absl::OkStatus());
    answer_alarm_.Set(loop_, StallTime(), answer_due_);
    grpc().SendLast(*answer_, ended_);
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
                          if (fired) stream_->Cancel();
                        }};
  CallAlarm answer_alarm_;
  absl::StatusOr<grpc::ByteBuffer> answer_;  // Used by the worker while it is busy.
  ByteReservation memory_;                   // Memory of the answer; used by the worker, too.
};

}  // namespace

void Listen(ServiceContext& context, RawService& service, GrpcLoop& loop, const UnaryMethod& method,
            WorkerPool* workers) {
  auto stream = std::make_unique<GrpcStream>(service, loop, method.name);
  ServedCall::Await(std::make_unique<UnaryCall>(context, loop, method, workers, std::move(stream)));
}

}  // namespace routing_replay::server
