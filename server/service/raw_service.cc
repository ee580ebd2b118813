#include "server/service/raw_service.h"

#include <grpcpp/support/method_handler.h>

namespace routing_replay {

int RawService::MarkStream(const char* method) {
  const auto* service = v1::SealRequest::descriptor()->file()->FindServiceByName("RoutingReplay");
  const int index = service->FindMethodByName(method)->index();
  MarkMethodStreamed(index, new grpc::internal::UnknownMethodHandler(""));  // Which a raw method does without again.
  MarkMethodRaw(index);
  return index;
}

}  // namespace routing_replay
