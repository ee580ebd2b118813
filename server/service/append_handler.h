// Append: a stream of appends of many samples, credited by bytes, one ack each. See append.proto for the protocol.
// Put: one append in one call, counted against the budget when it arrives.
#ifndef SERVER_SERVICE_APPEND_HANDLER_H_
#define SERVER_SERVICE_APPEND_HANDLER_H_

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "server/service/call_loop.h"
#include "server/service/service_context.h"

namespace routing_replay::server {

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
  void OnHandled();
  void OnWritten(bool ok);
  void OnStallCheck(bool fired);

  void ReadNext();
  void StartStallAlarm();
  // Whether the client has done nothing since the last check with what it holds.
  bool Stalls() const;
  // Takes the message's run. What the call has of the limits of the run before moves along: its place among the
  // streams, and its credit. A run that is not there has no limits.
  absl::Status EnterRun(const std::string& run);
  // What to answer; an error ends the stream. May wait for the store.
  absl::StatusOr<AppendResponse> Handle(grpc::ByteBuffer& message);
  absl::StatusOr<AppendResponse> Reject(const ByteChain& message, const Permissions& permissions,
                                        const absl::Status& status);
  Credit Grant(uint64_t want_bytes);
  absl::StatusOr<ByteReservation> Promise(uint64_t want_bytes);
  // So many bytes of the credit are used, whatever becomes of them; and as much of what the run was promised.
  struct UsedCredit {
    ByteReservation reservation;
    RunQuota::Hold promised;
  };
  UsedCredit UseCredit(int64_t bytes);
  void ReleaseCredit();
  AppendAck Process(AppendRequest request);
  // Ends the call with `status` once a message that is being handled is answered, and everything queued is written.
  void FinishWith(const absl::Status& status);
  void Pump();
  // Tells the gauge of all streams what this one holds.
  void TellCredit();

  ServiceContext& context_;
  RawService& service_;
  CallLoop& loop_;
  grpc::ServerContext grpc_context_;
  std::optional<CallRecord> record_;  // Once the call has arrived.
  RawStream stream_{&grpc_context_};
  CallEvent arrived_{this, [this](bool ok) { OnArrived(ok); }};
  CallEvent read_{this, [this](bool ok) { OnRead(ok); }};
  CallEvent written_{this, [this](bool ok) { OnWritten(ok); }};
  CallEvent stall_check_{this, [this](bool fired) { OnStallCheck(fired); }};
  CallEvent ended_{this, [this](bool) { SetFinished(); }};

  StoreWork work_{this, [this] { OnHandled(); }};
  grpc::ByteBuffer incoming_;
  absl::StatusOr<AppendResponse> answer_;
  // From here to promised_, and the record's rejections and payload_bytes_: the worker's while one is busy.
  std::string run_;
  ByteReservation credit_;   // Granted and not used yet.
  std::string entered_run_;  // Where runs are limited: that whose limits these are.
  // Why the message's run could not be entered. It may be made meanwhile, and what the run before was promised is not
  // its.
  absl::Status not_there_;
  std::unique_ptr<RunQuota::Stream> place_;
  std::unique_ptr<ConnectionCalls::Place> connection_;
  RunQuota::Hold promised_;  // Where the run's bytes are limited: as many as credit_, always.
  int64_t told_credit_ = 0;
  std::deque<std::string> outgoing_;
  grpc::Alarm stall_alarm_;
  int64_t payload_bytes_ = 0;  // Received, messages and written so far, …
  int64_t messages_ = 0;
  int64_t writes_ = 0;
  int64_t payload_bytes_at_check_ = 0;  // … and at the last stall check.
  int64_t messages_at_check_ = 0;
  int64_t writes_at_check_ = -1;
  bool held_credit_at_check_ = false;
  bool reading_ = false;
  bool writing_ = false;
  std::optional<absl::Status> final_status_;
  bool finishing_ = false;
};

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

#endif  // SERVER_SERVICE_APPEND_HANDLER_H_
