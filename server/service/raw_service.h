// The service as gRPC sees it: calls are told of when their headers have come, and what is received of them is their
// handler's to say.
//
// Of a method with one request gRPC tells nobody before that request is there as a whole, and holds what has come of
// it, or a thread that waits for it. So all are streams of bytes here, which nobody sees on the wire.
#ifndef SERVER_SERVICE_RAW_SERVICE_H_
#define SERVER_SERVICE_RAW_SERVICE_H_

#include <grpcpp/support/async_stream.h>

#include "routing_replay/v1/routing_replay.grpc.pb.h"

namespace routing_replay::server {

using RawStream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

class RawService final : public v1::RoutingReplay::Service {
 public:
  RawService();

  // The next call of `method`, a name of the service's; as RequestAppend of a generated service.
  void RequestCall(const char* method, grpc::ServerContext* call, RawStream* stream, grpc::CompletionQueue* call_queue,
                   grpc::ServerCompletionQueue* queue, void* tag);
};

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_RAW_SERVICE_H_
