// The calls of the service. Every call arrives, is admitted or rejected, and ends exactly once. ServedCall implements
// these steps; the other files implement what an admitted call does:
//
//   Append  append_call.cc    appends to many samples; each gets an ack, and long ones need credit first (append.proto)
//   Read    read_call.cc      a stream of the messages of a ReadSession
//   others  unary_methods.cc  one request, one answer (UnaryMethod in grpc_stream.h). Put, too, but in append_call.cc
//
// A loop is one thread. A call stays on the loop where it arrived, and all its events are handled on that loop's
// thread, so calls need no locks. Requests to a store that may block are executed by a worker thread, while the loop
// serves other calls (ServedCall::StartWork).
//
// A CallStream sends and receives the messages of a call, over gRPC (grpc_stream.h) or the direct path (server/direct).
#ifndef SERVER_SERVICE_SERVED_CALL_H_
#define SERVER_SERVICE_SERVED_CALL_H_

#include <grpcpp/alarm.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/buffer.h"
#include "proto/wire/clock.h"
#include "proto/wire/message/byte_chain.h"
#include "server/admission/worker_pool.h"
#include "server/service/read_session.h"
#include "server/service/service_context.h"

namespace routing_replay::server {

class Call;
class CallLoop;

// The completion of an asynchronous operation. When the operation ends, the loop calls `on_event`, usually a member
// function of the call that started the operation, with true if the operation succeeded.
class CallEvent {
 public:
  CallEvent(Call* call, std::function<void(bool)> on_event) : call_(call), on_event_(std::move(on_event)) {}
  CallEvent(const CallEvent&) = delete;
  CallEvent& operator=(const CallEvent&) = delete;

  // Call it when an operation with this event begins. Returns the event, to be used as gRPC's tag.
  CallEvent* Begin();

 private:
  friend class CallLoop;
  Call* const call_;
  const std::function<void(bool)> on_event_;
};

// A call in progress. Its loop deletes it when it has finished and no operation is open.
class Call {
 public:
  virtual ~Call() = default;
  // The server is draining: end soon, with UNAVAILABLE (kDraining) if work remains.
  virtual void Drain() = 0;

 protected:
  void SetFinished() { finished_ = true; }

 private:
  friend class CallEvent;
  friend class CallLoop;
  int open_operations_ = 0;
  bool finished_ = false;
};

// A timer. Set begins an event that arrives at a time of Clock::Real() (with true), or when the alarm is cancelled
// (with false).
class CallAlarm {
 public:
  void Set(CallLoop& loop, Clock::Time time, CallEvent& event);
  // May be called from any thread.
  void Cancel();

 private:
  friend class GrpcLoop;
  friend class DirectLoop;
  CallLoop* loop_ = nullptr;  // Set by Set.
  grpc::Alarm grpc_;
};

class CallLoop {
 public:
  virtual ~CallLoop() = default;

  // Takes ownership of `call`, which must then begin its first event. Call it before the loop runs, or on its thread.
  void Adopt(std::unique_ptr<Call> call) { calls_.insert(call.release()); }
  // Delivers `event`, with true, on the loop's thread. The caller must also call event.Begin. May be called from any
  // thread, but not again before the event has been handled. `alarm` must live until then.
  virtual void Post(CallAlarm& alarm, CallEvent& event) = 0;
  // May be called from any thread. Asks every call to drain.
  virtual void Drain() = 0;

 protected:
  friend class CallAlarm;
  virtual void SetAlarm(CallAlarm& alarm, Clock::Time time, CallEvent& event) = 0;
  virtual void CancelAlarm(CallAlarm& alarm) = 0;

  void HandleEvent(CallEvent* event, bool ok);
  void DrainCalls();
  void DeleteCalls();
  bool empty() const { return calls_.empty(); }

 private:
  std::set<Call*> calls_;  // Used only by the loop's thread (and before it runs).
};

inline void CallAlarm::Set(CallLoop& loop, Clock::Time time, CallEvent& event) {
  loop_ = &loop;
  loop.SetAlarm(*this, time, *event.Begin());
}

inline void CallAlarm::Cancel() {
  if (loop_ != nullptr) loop_->CancelAlarm(*this);
}

// A received message.
struct ReceivedMessage {
  ByteChain bytes;
  // The message's payload as separate buffers, if the transport received it in parts that the sender defined. They can
  // be kept without a copy. Otherwise empty.
  std::vector<Buffer> parts;
  std::shared_ptr<const void> owner;  // Keeps all bytes alive except those of `parts`.
};

// A message to send: `header`, then `payload`.
struct SentMessage {
  std::string header;
  std::vector<PayloadPart> payload;
};

// Sends and receives the messages of one call. Used on the loop's thread. At most one Receive and one Send at a time.
// Their events report false if the client is gone or has ended its side.
class CallStream {
 public:
  virtual ~CallStream() = default;

  // Called once. `arrived`, which this function begins, reports true when a call has arrived, and false if no more
  // calls will come. After true the call must begin `gone`, which reports that the call is over: by Finish, or because
  // its client went away.
  virtual void Arrive(CallEvent& arrived, CallEvent& gone) = 0;
  // Returns a stream that waits for the next call of the same method. Null if the transport starts calls in another way
  // (the direct path).
  virtual std::unique_ptr<CallStream> Next() = 0;
  // The caller of the call that arrived.
  virtual Caller caller() const = 0;

  // Starts to receive a message. If the transport knows the payload size in advance, a payload of more than
  // `most_payload` bytes ends the stream, and Take returns the error.
  virtual void Receive(int64_t most_payload, CallEvent& came) = 0;
  // Returns the received message, or why there is none: INTERNAL if it cannot be read, otherwise the error of Receive.
  virtual absl::StatusOr<ReceivedMessage> Take() = 0;
  virtual void Send(SentMessage message, CallEvent& sent) = 0;
  // Ends the call, and the operations that are still open.
  virtual void Finish(const absl::Status& status, CallEvent& ended) = 0;
  // Disconnects the client. Open operations end with false.
  virtual void Cancel() = 0;
};

// Serve the call of `stream` and all calls after it (CallStream::Next). Call them before the loop runs, or on its
// thread. `context` and `loop` must outlive the calls.
void ServeAppend(ServiceContext& context, CallLoop& loop, std::unique_ptr<CallStream> stream);
void ServeRead(ServiceContext& context, CallLoop& loop, std::unique_ptr<CallStream> stream);

// Identifies the caller, by the current token file; called again for every message of a stream. Errors of
// AccessControl::Identify; counts rejections.
absl::StatusOr<Permissions> Identify(ServiceContext& context, const Caller& caller);
// The owner of a call for fair sharing: its token, or its connection if there are no tokens.
std::string OwnerOf(const ServiceContext& context, const Caller& caller);
// Checks that `rpc` is allowed on the run. Errors of Permissions::Check; counts rejections.
absl::Status Allow(ServiceContext& context, const Permissions& permissions, Rpc rpc, absl::string_view run);
// Identify and Allow.
absl::Status Authorize(ServiceContext& context, const Caller& caller, Rpc rpc, absl::string_view run);
// For a call that names no run: checks that the token has one of the scopes for `rpc` on at least one run.
absl::StatusOr<Permissions> AuthorizeAnywhere(ServiceContext& context, const Caller& caller, Rpc rpc);

class ServedCall : public Call {
 public:
  // Waits for the next call of the method, which `call` then serves.
  static void Await(std::unique_ptr<ServedCall> call);

 protected:
  ServedCall(ServiceContext& context, CallLoop& loop, const char* method, std::unique_ptr<CallStream> stream)
      : context_(context), loop_(loop), stream_(std::move(stream)), method_(method) {}

  // Makes the object that serves the next call of the same method.
  virtual std::unique_ptr<ServedCall> Successor(std::unique_ptr<CallStream> stream) const = 0;
  // Called when the caller is authenticated and the call is within the limits.
  virtual void OnAdmitted() { ReceiveRequest(); }
  virtual void OnRequest() {}
  virtual void OnWorked() = 0;  // Called when the work of StartWork is done.
  virtual void OnWritten(bool ok) {}
  virtual void OnStallLook() {}  // Called once per stall_timeout, see WatchForStalls.
  virtual void OnTakesNothing() { stream_->Cancel(); }
  virtual void OnGone() {}  // The call is over, ended here or because its client went away.
  virtual void OnEnded() { SetFinished(); }
  virtual void FinishWith(const absl::Status& status) = 0;

  // Receives the request of a call that has only one, and watches for stalls from here on. The next event is OnRequest,
  // or the end of the call, at the latest after stall_timeout.
  void ReceiveRequest();
  // Calls `work`, a request to the store, on a worker thread, and then OnWorked on the loop's thread; one at a time.
  // While working(), `work` must not use state of the call that the loop's thread uses. If `workers` is null (the store
  // never waits), both are called at once, because switching threads would cost more. Returns the errors of
  // WorkerPool::Run; then neither is called.
  absl::Status StartWork(WorkerPool* workers, std::function<void()> work);
  bool working() const { return working_; }
  // Sends a message. The next one may be sent only after the event OnWritten.
  void Write(SentMessage message);
  bool writing() const { return writing_; }
  int64_t writes() const { return writes_; }  // Completed writes.
  // From here on the call is checked once per stall_timeout. OnTakesNothing is called if the same write was open at two
  // checks in a row.
  void WatchForStalls() { stall_alarm_.Set(loop_, StallTime(), stall_check_); }
  bool has_arrived() const { return record_.has_value(); }
  // Counts and logs the end of the call. Call it before the stream is ended.
  void End(const absl::Status& status);
  // Ends the call. With `keep_place` it counts as one of its connection's open calls until connection_ is reset.
  void Finish(const absl::Status& status, bool keep_place = false);
  Clock::Time StallTime() const { return Clock::Real().Now() + context_.config.stall_timeout; }

  ServiceContext& context_;
  CallLoop& loop_;
  const std::unique_ptr<CallStream> stream_;
  // caller_ and record_ are set when the call has arrived.
  Caller caller_;
  std::optional<CallRecord> record_;
  // Counts the call among the open calls of its connection. Reset before the client learns of the end, or later if an
  // answer is held until the client reads it, or if a worker is still busy.
  std::unique_ptr<Place> connection_;
  CallEvent ended_{this, [this](bool) { OnEnded(); }};
  std::atomic<bool> gone_{false};
  std::atomic<bool> finishing_{false};

 private:
  void OnArrived(bool ok);
  void OnReceived(bool ok);
  void OnStallCheck(bool fired);
  void EndWork();
  // Checks that the caller's token is valid, and that the connection does not have too many calls. Errors of Identify
  // and ConnectionCalls::Enter, and DrainingError.
  absl::Status Admit();

  const char* const method_;
  CallEvent arrived_{this, [this](bool ok) { OnArrived(ok); }};
  CallEvent received_{this, [this](bool ok) { OnReceived(ok); }};
  CallEvent done_{this, [this](bool) {
                    gone_ = true;
                    OnGone();
                  }};
  CallEvent worked_{this, [this](bool) { EndWork(); }};
  CallEvent written_{this, [this](bool ok) {
                       writing_ = false;
                       ++writes_;
                       OnWritten(ok);
                     }};
  CallEvent stall_check_{this, [this](bool fired) { OnStallCheck(fired); }};
  CallAlarm work_alarm_, stall_alarm_;
  bool working_ = false;
  bool awaits_request_ = false;
  bool writing_ = false;
  int64_t writes_ = 0;
  int64_t writes_at_look_ = -1;  // writes_ at the last check; -1 if no write was open.
};

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_SERVED_CALL_H_
