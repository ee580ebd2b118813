// The calls of the service. Every call waits to arrive, is admitted, and ends once. ServedCall implements these steps;
// the other files implement what happens in between:
//
//   Append  append_call.cc    a stream of appends of many samples, credited by bytes, one ack each (append.proto)
//   Read    read_call.cc      a stream of the messages of a ReadSession
//   others  unary_methods.cc  one request, one answer (UnaryMethod); served_call.cc has the call around it
//
// A loop is one thread. Every call lives on the loop it arrived at, so calls need no locks: whatever happens to a call
// happens on its loop's thread. What it asks of a store that may wait is done by a worker, while the loop goes on with
// others (StoreWork).
//
// How messages come and go is a CallStream's affair: of gRPC (grpc_stream.h) or of the direct path (server/direct).
#ifndef SERVER_SERVICE_SERVED_CALL_H_
#define SERVER_SERVICE_SERVED_CALL_H_

#include <grpcpp/alarm.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
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

// What a loop gives back when an operation ends: calls a member of the call that started it.
class CallEvent {
 public:
  CallEvent(Call* call, std::function<void(bool)> on_event) : call_(call), on_event_(std::move(on_event)) {}
  CallEvent(const CallEvent&) = delete;
  CallEvent& operator=(const CallEvent&) = delete;

  // Says that an operation of this event begins. Returns the event, for gRPC's tags.
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

// Begins an event that comes at a time of Clock::Real() (true), or because it was cancelled before (false).
class CallAlarm {
 public:
  void Set(CallLoop& loop, Clock::Time time, CallEvent& event);
  // From any thread.
  void Cancel();

 private:
  friend class GrpcLoop;
  friend class DirectLoop;
  CallLoop* loop_ = nullptr;  // Since it was set.
  grpc::Alarm grpc_;
};

class CallLoop {
 public:
  virtual ~CallLoop() = default;

  // Begins to wait for a first event of `call`, which the loop owns from now on. Before it runs, or on its thread.
  void Adopt(std::unique_ptr<Call> call) { calls_.insert(call.release()); }
  // From any thread, at most once between two ends: an event without an operation. `alarm` must live until the event.
  virtual void Post(CallAlarm& alarm, CallEvent& event) = 0;
  // From any thread: asks every call to drain.
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
  std::set<Call*> calls_;  // Touched by the loop's thread only (and before it runs).
};

inline void CallAlarm::Set(CallLoop& loop, Clock::Time time, CallEvent& event) {
  loop_ = &loop;
  loop.SetAlarm(*this, time, *event.Begin());
}

inline void CallAlarm::Cancel() {
  if (loop_ != nullptr) loop_->CancelAlarm(*this);
}

// A message that came.
struct ReceivedMessage {
  ByteChain bytes;
  // Its last bytes once more, where the transport took them in parts that their sender named: to be kept without a
  // copy.
  std::vector<Buffer> parts;
  std::shared_ptr<const void> owner;  // Of all bytes but those of `parts`.
};

// A message to send: `header`, then `payload`.
struct SentMessage {
  std::string header;
  std::vector<PayloadPart> payload;
};

// How the messages of one call come and go. Used on the loop's thread. One Receive and one Send at a time; the events
// begin with them, and give false where the client is gone or has said all.
class CallStream {
 public:
  virtual ~CallStream() = default;

  // Once: `arrived` (begun here) when the call is there, false if none comes any more. After that `gone`, which the
  // call begins then, when it is over, by Finish or because its client went away.
  virtual void Arrive(CallEvent& arrived, CallEvent& gone) = 0;
  // Of a stream that waits for calls: the one that waits for the next of the same method; otherwise null.
  virtual std::unique_ptr<CallStream> Next() = 0;
  // Of the call that arrived.
  virtual Caller caller() const = 0;

  // A message with more payload than `most_payload` ends the stream where the transport can tell before it has taken
  // it: it is Take's error then.
  virtual void Receive(int64_t most_payload, CallEvent& came) = 0;
  // What came. INTERNAL if it cannot be read.
  virtual absl::StatusOr<ReceivedMessage> Take() = 0;
  virtual void Send(SentMessage message, CallEvent& sent) = 0;
  // The end. What is open ends before.
  virtual void Finish(const absl::Status& status, CallEvent& ended) = 0;
  // The client is cut off: what is open ends.
  virtual void Cancel() = 0;
};

// Work of one call for a store that may wait, one piece at a time, which keeps the order of the call's requests. Used
// on the loop's thread.
class StoreWork {
 public:
  // `on_done` is called on the loop's thread, or by Start.
  StoreWork(Call* call, std::function<void()> on_done)
      : done_(call, [this](bool) { Done(); }), on_done_(std::move(on_done)) {}

  // Calls `work`, and then on_done. While busy(), `work` must not use anything of the call that the loop's thread uses.
  // `workers`: null for a store that never waits: then both are called at once, because changing threads would cost
  // more. Errors of WorkerPool::Run: then neither is called.
  absl::Status Start(WorkerPool* workers, const std::string& owner, CallLoop& loop, std::function<void()> work) {
    busy_ = true;
    if (workers == nullptr) {
      work();
      Done();
      return absl::OkStatus();
    }
    absl::Status taken = workers->Run(owner, [this, &loop, work = std::move(work)] {
      work();
      loop.Post(alarm_, done_);  // Must be last: the call may end with it.
    });
    busy_ = taken.ok();
    if (taken.ok()) done_.Begin();  // Its event is handled by this thread, and so later.
    return taken;
  }
  bool busy() const { return busy_; }

 private:
  void Done() {
    busy_ = false;
    on_done_();
  }

  CallEvent done_;
  const std::function<void()> on_done_;
  CallAlarm alarm_;
  bool busy_ = false;
};

// The environment of the served calls. Must outlive them.
struct CallHome {
  ServiceContext& context;
  CallLoop& loop;
};

// Serve the call of which `stream` is, and all that follow it (CallStream::Next). Before the loop runs, or on its
// thread.
void ServeAppend(const CallHome& home, std::unique_ptr<CallStream> stream);
void ServeRead(const CallHome& home, std::unique_ptr<CallStream> stream);

// Identifies the caller, by the present token file; called again for every message of a stream. Errors of
// AccessControl::Identify; counts rejections.
absl::StatusOr<Permissions> Identify(ServiceContext& context, const Caller& caller);
// The owner of a call for fair sharing: its token, however that is spelled, or its connection if there are no tokens.
std::string OwnerOf(const ServiceContext& context, const Caller& caller);
// Checks that `rpc` is allowed on the run. Errors of Permissions::Check; counts rejections.
absl::Status Allow(ServiceContext& context, const Permissions& permissions, Rpc rpc, absl::string_view run);
// Identify and Allow.
absl::Status Authorize(ServiceContext& context, const Caller& caller, Rpc rpc, absl::string_view run);
// For a call that names no run: checks for one of the scopes on any run.
absl::StatusOr<Permissions> AuthorizeAnywhere(ServiceContext& context, const Caller& caller, Rpc rpc);

class ServedCall : public Call {
 public:
  // Waits for the call.
  static void Await(std::unique_ptr<ServedCall> call);

 protected:
  ServedCall(const CallHome& home, const char* method, std::unique_ptr<CallStream> stream)
      : home_(home), context_(home.context), loop_(home.loop), stream_(std::move(stream)), method_(method) {}

  // Another one of this kind.
  virtual std::unique_ptr<ServedCall> Successor(std::unique_ptr<CallStream> stream) const = 0;
  // The caller is known and may call, and there is room.
  virtual void OnAdmitted() { ReceiveRequest(); }
  virtual void OnRequest() {}
  virtual void OnWorked() = 0;  // Called when the work of StartWork is done.
  virtual void OnWritten(bool ok) {}
  virtual void OnStallLook() {}  // Called once per stall_timeout, see WatchForStalls.
  virtual void OnTakesNothing() { stream_->Cancel(); }
  virtual void OnGone() {}  // The call is over, ended here or because its client went away.
  virtual void OnEnded() { SetFinished(); }
  virtual void FinishWith(const absl::Status& status) = 0;

  // For a call with one request; the next event is OnRequest, or the call's end.
  void ReceiveRequest();
  // See StoreWork. Errors end the call.
  absl::Status StartWork(WorkerPool* workers, std::function<void()> work) {
    return work_.Start(workers, OwnerOf(context_, caller_), loop_, std::move(work));
  }
  // Sends a message; the next event is OnWritten. One at a time.
  void Write(SentMessage message);
  bool writing() const { return writing_; }
  int64_t writes() const { return writes_; }  // Completed writes.
  // From here on the call is checked once per stall_timeout. OnTakesNothing is called if the same write was open at two
  // checks in a row.
  void WatchForStalls() { stall_alarm_.Set(loop_, StallTime(), stall_check_); }
  bool has_arrived() const { return record_.has_value(); }
  // What there is to do before the stream is told of the end.
  void End(const absl::Status& status);
  // Ends the call. `keep_place`: it continues to count as one of its connection's calls.
  void Finish(const absl::Status& status, bool keep_place = false);
  Clock::Time StallTime() const { return Clock::Real().Now() + context_.config.stall_timeout; }

  const CallHome home_;
  ServiceContext& context_;
  CallLoop& loop_;
  const std::unique_ptr<CallStream> stream_;
  // Once the call has arrived:
  Caller caller_;
  std::optional<CallRecord> record_;
  // The call's place among those of its connection. It is given up before the end is reported, except while an answer
  // is held until the peer reads it.
  std::unique_ptr<Place> connection_;
  StoreWork work_{this, [this] { OnWorked(); }};
  CallEvent ended_{this, [this](bool) { OnEnded(); }};
  std::atomic<bool> gone_{false};
  std::atomic<bool> finishing_{false};

 private:
  void OnArrived(bool ok);
  void OnReceived(bool ok);
  void OnRequestDue(bool fired);
  void OnStallCheck(bool fired);
  // Checks that the caller is known, and that the connection does not have too many calls. Errors of Identify and
  // ConnectionCalls::Enter, and DrainingError.
  absl::Status Admit();

  const char* const method_;
  CallEvent arrived_{this, [this](bool ok) { OnArrived(ok); }};
  CallEvent received_{this, [this](bool ok) { OnReceived(ok); }};
  CallEvent request_due_{this, [this](bool fired) { OnRequestDue(fired); }};
  CallEvent done_{this, [this](bool) {
                    gone_ = true;
                    OnGone();
                  }};
  CallEvent written_{this, [this](bool ok) {
                       writing_ = false;
                       ++writes_;
                       OnWritten(ok);
                     }};
  CallEvent stall_check_{this, [this](bool fired) { OnStallCheck(fired); }};
  CallAlarm request_alarm_, stall_alarm_;
  bool request_came_ = false;
  bool writing_ = false;
  int64_t writes_ = 0;
  int64_t writes_at_look_ = -1;  // At the last check that found a write open.
};

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_SERVED_CALL_H_
