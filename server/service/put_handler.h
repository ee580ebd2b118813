// Put: one append in one call. Counted against the budget when it arrives.
#ifndef SERVER_SERVICE_PUT_HANDLER_H_
#define SERVER_SERVICE_PUT_HANDLER_H_

#include <memory>
#include <optional>

#include "server/service/call_loop.h"
#include "server/service/raw_service.h"
#include "server/service/service_context.h"
#include "server/service/store_work.h"

namespace routing_replay::server {

class PutCall final : public Call {
 public:
  // Waits for the next Put call on `loop`; makes its own successor when one comes.
  static void Listen(ServiceContext& context, RawService& service, CallLoop& loop);

  void Drain() override;

 private:
  PutCall(ServiceContext& context, RawService& service, CallLoop& loop)
      : context_(context), service_(service), loop_(loop) {}

  void OnArrived(bool ok);
  void OnReceived(bool ok);
  void OnHandled();
  void OnRequestDue(bool fired);

  // May wait for the store.
  absl::StatusOr<AppendAck> Handle();
  void FinishWith(const absl::Status& status);
  // What there is to do before gRPC is told of the end.
  void End(const absl::Status& status);

  ServiceContext& context_;
  RawService& service_;
  CallLoop& loop_;
  grpc::ServerContext grpc_context_;
  std::optional<CallRecord> record_;
  grpc::ByteBuffer request_;
  RawStream stream_{&grpc_context_};
  CallEvent arrived_{this, [this](bool ok) { OnArrived(ok); }};
  CallEvent received_{this, [this](bool ok) { OnReceived(ok); }};
  CallEvent request_due_{this, [this](bool fired) { OnRequestDue(fired); }};
  CallEvent ended_{this, [this](bool) { SetFinished(); }};
  StoreWork work_{this, [this] { OnHandled(); }};
  absl::StatusOr<AppendAck> ack_;  // The worker's, until OnHandled.
  grpc::Alarm request_alarm_;
  std::unique_ptr<ConnectionCalls::Place> connection_;
  bool finishing_ = false;
};

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_PUT_HANDLER_H_
