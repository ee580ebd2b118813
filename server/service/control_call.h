// One call of ControlMethods(): waits for its request without a thread, and is answered by a worker.
#ifndef SERVER_SERVICE_CONTROL_CALL_H_
#define SERVER_SERVICE_CONTROL_CALL_H_

#include <atomic>
#include <memory>
#include <optional>

#include "server/admission/worker_pool.h"
#include "server/service/call_loop.h"
#include "server/service/control_methods.h"
#include "server/service/service_context.h"

namespace routing_replay::server {

class ControlCall final : public Call {
 public:
  // What all of them share. `workers` must be finished before the loop is shut down.
  struct Home {
    ServiceContext& context;
    RawService& service;
    CallLoop& loop;
    WorkerPool& workers;
  };
  // Waits for the next call of the method on the loop; makes its own successor when one comes.
  static void Listen(const Home& home, const ControlMethod& method);

  void Drain() override;

 private:
  ControlCall(const Home& home, const ControlMethod& method) : home_(home), method_(method) {}

  void OnArrived(bool ok);
  void OnReceived(bool ok);
  void OnRequestDue(bool fired);
  // On a worker's thread.
  void Answer();
  void OnAnswered();
  void OnAnswerDue(bool fired);
  void OnEnded();
  void FinishWith(const absl::Status& status);
  // What there is to do before gRPC is told of the end.
  void End(const absl::Status& status);

  const Home home_;
  const ControlMethod& method_;
  grpc::ServerContext grpc_context_;
  std::optional<CallRecord> record_;
  grpc::ByteBuffer request_;
  RawStream stream_{&grpc_context_};
  CallEvent arrived_{this, [this](bool ok) { OnArrived(ok); }};
  CallEvent received_{this, [this](bool ok) { OnReceived(ok); }};
  CallEvent request_due_{this, [this](bool fired) { OnRequestDue(fired); }};
  CallEvent answered_{this, [this](bool) { OnAnswered(); }};
  CallEvent done_{this, [this](bool) { gone_ = true; }};
  CallEvent answer_due_{this, [this](bool fired) { OnAnswerDue(fired); }};
  CallEvent ended_{this, [this](bool) { OnEnded(); }};
  grpc::Alarm request_alarm_;
  grpc::Alarm answered_alarm_;
  grpc::Alarm answer_alarm_;
  std::unique_ptr<ConnectionCalls::Place> connection_;
  absl::StatusOr<grpc::ByteBuffer> answer_;  // The worker's, until answered_ …
  ByteReservation memory_;                   // … as is what it takes.
  std::atomic<bool> gone_{false};
  bool working_ = false;
  bool finishing_ = false;
};

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_CONTROL_CALL_H_
