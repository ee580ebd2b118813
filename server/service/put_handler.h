// Put: one append in one call. Counted against the budget when it arrives.
#ifndef SERVER_SERVICE_PUT_HANDLER_H_
#define SERVER_SERVICE_PUT_HANDLER_H_

#include <optional>

#include "server/service/call_loop.h"
#include "server/service/raw_service.h"
#include "server/service/service_context.h"

namespace routing_replay {

class PutCall final : public Call {
 public:
  // Waits for the next Put call on `loop`; makes its own successor when one comes.
  static void Listen(ServiceContext& context, RawService& service, CallLoop& loop);

  // A Put ends by itself.
  void Drain() override {}

 private:
  PutCall(ServiceContext& context, RawService& service, CallLoop& loop)
      : context_(context), service_(service), loop_(loop) {}

  void OnArrived(bool ok);
  absl::StatusOr<AppendAck> Handle();

  ServiceContext& context_;
  RawService& service_;
  CallLoop& loop_;
  grpc::ServerContext grpc_context_;
  std::optional<CallRecord> record_;
  grpc::ByteBuffer request_;
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> writer_{&grpc_context_};
  CallEvent arrived_{this, [this](bool ok) { OnArrived(ok); }};
  CallEvent ended_{this, [this](bool) { SetFinished(); }};
};

}  // namespace routing_replay

#endif  // SERVER_SERVICE_PUT_HANDLER_H_
