#include "server/service/raw_service.h"

#include <grpcpp/support/method_handler.h>

namespace routing_replay::server {
namespace {

const google::protobuf::ServiceDescriptor& Description() {
  return *v1::SealRequest::descriptor()->file()->FindServiceByName("RoutingReplay");
}

}  // namespace

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
