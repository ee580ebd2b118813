// Append: a stream of appends of many samples, credited by bytes, one ack each. See append.proto for the protocol.
#ifndef SERVER_SERVICE_APPEND_HANDLER_H_
#define SERVER_SERVICE_APPEND_HANDLER_H_

#include <deque>
#include <optional>
#include <string>

#include "server/service/call_loop.h"
#include "server/service/raw_service.h"
#include "server/service/service_context.h"

namespace routing_replay {

class AppendCall final : public Call {
 public:
  // Waits for the next Append call on `loop`; makes its own successor when one comes.
  static void Listen(ServiceContext& context, RawService& service, CallLoop& loop);

  void Drain() override;

 private:
  AppendCall(ServiceContext& context, RawService& service, CallLoop& loop)
      : context_(context), service_(service), loop_(loop) {}

  void OnArrived(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);

  void ReadNext();
  void Handle(grpc::ByteBuffer& message);
  void Refuse(const ByteChain& message, const absl::Status& status);
  Credit Grant(uint64_t want_bytes);
  AppendAck Process(AppendRequest request);
  void Send(const AppendResponse& response);
  // Ends the call with `status` once everything queued is written.
  void FinishWith(const absl::Status& status);
  void Pump();
  // Tells the gauge of all streams what this one holds.
  void TellCredit();

  ServiceContext& context_;
  RawService& service_;
  CallLoop& loop_;
  grpc::ServerContext grpc_context_;
  std::optional<CallRecord> record_;  // Once the call has arrived.
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_{&grpc_context_};
  CallEvent arrived_{this, [this](bool ok) { OnArrived(ok); }};
  CallEvent read_{this, [this](bool ok) { OnRead(ok); }};
  CallEvent written_{this, [this](bool ok) { OnWritten(ok); }};
  CallEvent ended_{this, [this](bool) { SetFinished(); }};

  grpc::ByteBuffer incoming_;
  std::string run_;
  ByteReservation credit_;  // Granted and not used yet.
  int64_t told_credit_ = 0;
  std::deque<std::string> outgoing_;
  bool reading_ = false;
  bool writing_ = false;
  std::optional<absl::Status> final_status_;
  bool finishing_ = false;
};

}  // namespace routing_replay

#endif  // SERVER_SERVICE_APPEND_HANDLER_H_
