// The service as gRPC sees it: Append, Put and Read come as bytes on completion queues, everything else as generated
// messages on gRPC's own threads.
//
// Of a method with one request gRPC tells nobody before that request is there as a whole, and holds what has come of
// it. So Put and Read are streams here, which nobody sees on the wire: their calls are told of when their headers have
// come, and what is received of them is the handler's to say.
#ifndef SERVER_SERVICE_RAW_SERVICE_H_
#define SERVER_SERVICE_RAW_SERVICE_H_

#include <grpcpp/support/async_stream.h>

#include "routing_replay/v1/routing_replay.grpc.pb.h"
#include "server/service/control_service.h"

namespace routing_replay {

using RawStream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

class RawService final : public v1::RoutingReplay::WithRawMethod_Append<ControlService> {
 public:
  RawService() : put_(MarkStream("Put")), read_(MarkStream("Read")) {}

  // As RequestAppend.
  void RequestPut(grpc::ServerContext* call, RawStream* stream, grpc::CompletionQueue* call_queue,
                  grpc::ServerCompletionQueue* queue, void* tag) {
    RequestAsyncBidiStreaming(put_, call, stream, call_queue, queue, tag);
  }
  void RequestRead(grpc::ServerContext* call, RawStream* stream, grpc::CompletionQueue* call_queue,
                   grpc::ServerCompletionQueue* queue, void* tag) {
    RequestAsyncBidiStreaming(read_, call, stream, call_queue, queue, tag);
  }

 private:
  // Its index.
  int MarkStream(const char* method);

  const int put_;
  const int read_;
};

}  // namespace routing_replay

#endif  // SERVER_SERVICE_RAW_SERVICE_H_
