#include "client/caller.h"

#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include "client/channel/channel.h"

namespace routing_replay {

absl::Status Caller::Attempt(Repeat repeat, const std::function<absl::Status(grpc::ClientContext&)>& attempt) const {
  const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), timeout_);
  const auto once = [&] {
    grpc::ClientContext context;
    context.set_deadline(GrpcDeadline(deadline));
    context.set_wait_for_ready(repeat == Repeat::kNever);
    absl::Status status = attempt(context);
    link_->OnEnd(status);
    return status;
  };
  if (repeat == Repeat::kNever) {
    link_->LookAgain();  // Otherwise it would wait for a server that will not come back there.
    return once();
  }
  return RetryUnavailable(RetrySchedule(deadline), RetryTime::Real(), once);
}

absl::StatusOr<grpc::ByteBuffer> Caller::CallRaw(const std::string& method,
                                                 const std::function<grpc::ByteBuffer()>& make_request) const {
  grpc::ByteBuffer response;
  const absl::Status status = Attempt(Repeat::kAlways, [&](grpc::ClientContext& context) {
    grpc::GenericStub stub(link_->channel());
    grpc::CompletionQueue queue;
    grpc::Status result;
    const grpc::ByteBuffer request = make_request();
    const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
    call->StartCall();
    call->Finish(&response, &result, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
    return FromGrpcStatus(result);
  });
  if (!status.ok()) return status;
  return response;
}

}  // namespace routing_replay
