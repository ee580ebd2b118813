// The calls of the service. Every call waits to arrive, is admitted, and ends once. ServedCall implements these steps;
// the other files implement what happens in between:
//
//   Append  append_call.cc    a stream of appends of many samples, credited by bytes, one ack each (append.proto)
//   Read    read_call.cc      a stream of the messages of a ReadSession
//   others  unary_methods.cc  one request, one answer (UnaryMethod); served_call.cc has the call around it
//
// A loop is one completion queue and one thread. Every call lives on the loop it arrived at, so calls need no locks:
// whatever happens to a call happens on its loop's thread. What it asks of a store that may wait is done by a worker,
// while the loop goes on with others (StoreWork).
#ifndef SERVER_SERVICE_SERVED_CALL_H_
#define SERVER_SERVICE_SERVED_CALL_H_

#include <grpcpp/alarm.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/async_stream.h>

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
#include "routing_replay/v1/routing_replay.grpc.pb.h"
#include "server/admission/worker_pool.h"
#include "server/service/service_context.h"

namespace routing_replay::server {

class Call;

// The tag of an operation in a completion queue: at its end, it calls a member of the call that started it.
class CallEvent {
 public:
  CallEvent(Call* call, std::function<void(bool)> on_event) : call_(call), on_event_(std::move(on_event)) {}
  CallEvent(const CallEvent&) = delete;
  CallEvent& operator=(const CallEvent&) = delete;

  // Marks the begin of an operation with this tag. Returns the tag.
  void* Begin();
  // Posts an event without an operation; from any thread, at most once between two ends. `alarm` must live until the
  // event.
  void Post(grpc::Alarm& alarm, grpc::CompletionQueue* queue);

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

class CallLoop {
 public:
  explicit CallLoop(std::unique_ptr<grpc::ServerCompletionQueue> queue) : queue_(std::move(queue)) {}
  // Requires Shutdown and Join before.
  ~CallLoop() = default;

  grpc::ServerCompletionQueue* queue() { return queue_.get(); }
  // Takes ownership of `call` and waits for its first event. Call it before Start, or on the loop's thread.
  void Adopt(std::unique_ptr<Call> call);

  void Start();
  // From any thread: asks every call to drain.
  void Drain();
  // Call it after Server::Shutdown has returned, which cancels all calls: the thread ends when the last call has ended.
  // Until then the calls' events begin more operations, such as the Finish after a failed Read, so the queue stays open
  // for them.
  void ShutdownAndJoin();

 private:
  void Run();
  void HandleEvent(CallEvent* event, bool ok);
  void DrainCalls();

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::thread thread_;
  std::set<Call*> calls_;  // Used by the loop's thread only (and before Start).
  grpc::Alarm drain_alarm_;
  grpc::Alarm end_alarm_;
};

// The service as gRPC sees it: handlers learn of a call when its headers have arrived, and decide what is received of
// it. For a method with one request, gRPC would report the call only when the whole request is there; until then it
// would hold the received part, or a thread that waits for it. So all methods are streams of bytes here, which makes no
// difference on the wire.
using RawStream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

class RawService final : public v1::RoutingReplay::Service {
 public:
  RawService();

  // Waits for the next call of `method`, a name of the service; as RequestAppend of a generated service.
  void RequestCall(const char* method, grpc::ServerContext* call, RawStream* stream, grpc::CompletionQueue* call_queue,
                   grpc::ServerCompletionQueue* queue, void* tag);
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
      done_.Post(alarm_, loop.queue());  // Must be last: the call may end with it.
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
  grpc::Alarm alarm_;
  bool busy_ = false;
};

// The environment of the served calls. Must outlive them.
struct CallHome {
  ServiceContext& context;
  RawService& service;
  CallLoop& loop;
};

struct UnaryCaller {
  const grpc::ServerContext& call;
  const CallRecord& record;
  // Memory for the answer, from ServiceContext::control_memory: held until the answer is read.
  ByteReservation& memory;
};

// Limit of a request without payload: protobuf parses it, and a malicious one could take thirty times its length in
// memory. Enough for ten thousand of the longest sample ids, twice.
inline constexpr int64_t kMaxControlBytes = 4 << 20;

struct UnaryMethod {
  const char* name;
  // Answers a request; consumes it. May wait for the store. Checks permissions; errors become the call's status:
  // INVALID_ARGUMENT if the bytes cannot be parsed.
  std::function<absl::StatusOr<grpc::ByteBuffer>(ServiceContext&, const UnaryCaller&, grpc::ByteBuffer& request)>
      answer;
  // A longer request is RESOURCE_EXHAUSTED (kLength), before it waits for a thread and takes memory.
  int64_t max_bytes = kMaxControlBytes;
};

// Put: one append in one call, counted against the budget when it arrives.
const UnaryMethod& PutMethod();
// Every method of the service except Append, Put and Read.
const std::vector<UnaryMethod>& ControlMethods();

// Waits on the loop for the next call of its kind; each call that arrives makes its successor.
void ListenForAppends(const CallHome& home);
void ListenForReads(const CallHome& home);
// `workers` answer the calls; null: the loop's thread does, because the store never waits. They must be finished before
// the loop is shut down.
void Listen(const CallHome& home, const UnaryMethod& method, WorkerPool* workers);

// Identifies the caller, by the present token file; called again for every message of a stream. Errors of
// AccessControl::Identify; counts rejections.
absl::StatusOr<Permissions> Identify(ServiceContext& context, const grpc::ServerContextBase& call);
// The owner of a call for fair sharing: its token, however that is spelled, or its connection if there are no tokens.
std::string OwnerOf(const ServiceContext& context, const grpc::ServerContextBase& call);
// Checks that `rpc` is allowed on the run. Errors of Permissions::Check; counts rejections.
absl::Status Allow(ServiceContext& context, const Permissions& permissions, Rpc rpc, absl::string_view run);
// Identify and Allow.
absl::Status Authorize(ServiceContext& context, const grpc::ServerContextBase& call, Rpc rpc, absl::string_view run);
// For a call that names no run: checks for one of the scopes on any run.
absl::StatusOr<Permissions> AuthorizeAnywhere(ServiceContext& context, const grpc::ServerContextBase& call, Rpc rpc);

class ServedCall : public Call {
 public:
  // Waits for the next call of the method.
  static void Await(std::unique_ptr<ServedCall> call);

 protected:
  ServedCall(const CallHome& home, const char* method)
      : home_(home), context_(home.context), loop_(home.loop), method_(method) {}

  virtual std::unique_ptr<ServedCall> Successor() const = 0;
  // The caller is known and may call, and there is room.
  virtual void OnAdmitted() { ReceiveRequest(); }
  virtual void OnRequest() {}
  virtual void OnWorked() = 0;  // Called when the work of StartWork is done.
  virtual void OnWritten(bool ok) {}
  virtual void OnStallLook() {}  // Called once per stall_timeout, see WatchForStalls.
  virtual void OnTakesNothing() { grpc_context_.TryCancel(); }
  virtual void OnGone() {}  // The call is over, ended here or because its client went away.
  virtual void OnEnded() { SetFinished(); }
  virtual void FinishWith(const absl::Status& status) = 0;

  // For a call with one request; the next event is OnRequest, or the call's end.
  void ReceiveRequest();
  // See StoreWork. Errors end the call.
  absl::Status StartWork(WorkerPool* workers, std::function<void()> work) {
    return work_.Start(workers, OwnerOf(context_, grpc_context_), loop_, std::move(work));
  }
  // Sends a message; the next event is OnWritten. One at a time.
  void Write(grpc::ByteBuffer message);
  bool writing() const { return writing_; }
  int64_t writes() const { return writes_; }  // Completed writes.
  // From here on the call is checked once per stall_timeout. OnTakesNothing is called if the same write was open at two
  // checks in a row.
  void WatchForStalls() { stall_alarm_.Set(loop_.queue(), StallTime(), stall_check_.Begin()); }
  bool has_arrived() const { return record_.has_value(); }
  // Does everything that must happen before gRPC is told of the end.
  void End(const absl::Status& status);
  // Ends the call. `keep_place`: it continues to count as one of its connection's calls.
  void Finish(const absl::Status& status, bool keep_place = false);
  std::chrono::system_clock::time_point StallTime() const {
    return std::chrono::system_clock::now() + context_.config.stall_timeout;
  }

  const CallHome home_;
  ServiceContext& context_;
  CallLoop& loop_;
  grpc::ServerContext grpc_context_;
  RawStream stream_{&grpc_context_};
  grpc::ByteBuffer request_;
  std::optional<CallRecord> record_;  // Once the call has arrived.
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
  grpc::Alarm request_alarm_, stall_alarm_;
  bool request_came_ = false;
  bool writing_ = false;
  int64_t writes_ = 0;
  int64_t writes_at_look_ = -1;  // At the last check that found a write open.
};

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_SERVED_CALL_H_
