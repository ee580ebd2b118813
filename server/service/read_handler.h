// Read: streams the messages of a ReadSession, each of which is made by a worker where the store may wait. One message
// is in flight at a time, so a slow reader costs one message; a waiting read holds no thread.
#ifndef SERVER_SERVICE_READ_HANDLER_H_
#define SERVER_SERVICE_READ_HANDLER_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "server/service/call_loop.h"
#include "server/service/read_session.h"
#include "server/service/service_context.h"

namespace routing_replay::server {

class ReadCall final : public Call {
 public:
  // Waits for the next Read call on `loop`; makes its own successor when one comes.
  static void Listen(ServiceContext& context, RawService& service, CallLoop& loop);

  void Drain() override;

 private:
  ReadCall(ServiceContext& context, RawService& service, CallLoop& loop);

  void OnArrived(bool ok);
  void OnReceived(bool ok);
  void OnRequestDue(bool fired);
  void OnWritten(bool ok);
  void OnChanged();
  void OnWaitOver(bool fired);
  void OnStallCheck(bool fired);
  void OnDeadline(bool fired);
  void OnDone();

  // Advances if the caller still may: a read lasts long, and is to end with the token that it came with.
  void Continue();
  // Has the next step made, …
  void Advance();
  // … which may wait for the store …
  void MakeStep();
  // … and sends it, parks the call, or finishes it.
  void OnStep();
  void SendStep(ReadStep step);
  // The sample that the step waits for was watched before it was looked at last.
  void Park();
  void Unpark();
  // Takes its place among those that wait, if it has none. Where there is none for a read that has sent samples,
  // waiting is over for the others: one that is not ready does not take back what was sent.
  absl::Status TakePlace();
  // What was received, as parsed; the memory it takes is reserved.
  absl::StatusOr<ReadRequest> TakeRequest();
  void StartTimers();
  void FinishWith(const absl::Status& status);
  // Ends it, whatever it is doing.
  void CutOff(const absl::Status& why);

  ServiceContext& context_;
  RawService& service_;
  CallLoop& loop_;
  grpc::ServerContext grpc_context_;
  std::optional<CallRecord> record_;
  grpc::ByteBuffer request_;
  RawStream writer_{&grpc_context_};
  CallEvent arrived_{this, [this](bool ok) { OnArrived(ok); }};
  CallEvent received_{this, [this](bool ok) { OnReceived(ok); }};
  CallEvent request_due_{this, [this](bool fired) { OnRequestDue(fired); }};
  CallEvent written_{this, [this](bool ok) { OnWritten(ok); }};
  CallEvent changed_{this, [this](bool) { OnChanged(); }};
  CallEvent wait_over_{this, [this](bool fired) { OnWaitOver(fired); }};
  CallEvent stall_check_{this, [this](bool fired) { OnStallCheck(fired); }};
  CallEvent deadline_{this, [this](bool fired) { OnDeadline(fired); }};
  CallEvent done_{this, [this](bool) { OnDone(); }};
  CallEvent ended_{this, [this](bool) { SetFinished(); }};

  StoreWork work_{this, [this] { OnStep(); }};
  // The worker's while one is busy:
  std::optional<ReadRequest> asked_;  // Until there is a session.
  std::unique_ptr<ReadSession> session_;
  ReadStep step_;
  std::unique_ptr<Store::Watch> new_watch_;  // Of a step that waits.
  bool may_wait_ = false;

  std::chrono::system_clock::time_point wait_until_;
  std::unique_ptr<Store::Watch> watch_;
  grpc::Alarm change_alarm_;
  grpc::Alarm request_alarm_;
  grpc::Alarm wait_alarm_;
  grpc::Alarm stall_alarm_;
  grpc::Alarm deadline_alarm_;
  ByteReservation request_memory_;
  std::atomic<bool> sent_away_{false};                 // From its place, for others.
  std::unique_ptr<WaitingRoom::Place> waiting_place_;  // While it has nothing to send.
  std::unique_ptr<RunQuota::Stream> stream_;
  std::unique_ptr<ConnectionCalls::Place> connection_;
  bool change_expected_ = false;  // changed_ is open: its event comes by the watch or by Unpark.
  enum class Change { kNone, kAwaited, kCame };
  std::atomic<Change> change_{Change::kNone};  // Of the last watch. Who finds it awaited posts changed_.
  bool writing_ = false;
  int64_t writes_ = 0;            // Completed …
  int64_t writes_at_check_ = -1;  // … and at the last stall check that found one open.
  bool waiting_is_over_ = false;
  absl::Status cut_off_;  // Why it was cancelled while it was writing.
  std::atomic<bool> finishing_{false};
};

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_READ_HANDLER_H_
