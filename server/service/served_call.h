// The calls of the service. Every call waits to arrive, is admitted, and ends once; ServedCall has these steps, the
// others what lies between them:
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

// What a completion queue gives back when an operation ends: calls a member of the call that started it.
class CallEvent {
 public:
  CallEvent(Call* call, std::function<void(bool)> on_event) : call_(call), on_event_(std::move(on_event)) {}
  CallEvent(const CallEvent&) = delete;
  CallEvent& operator=(const CallEvent&) = delete;

  // Says that an operation with this tag begins. Returns the tag.
  void* Begin();
  // From any thread, at most once between two ends: an event without an operation. `alarm` must live until the event.
  void Post(grpc::Alarm& alarm, grpc::CompletionQueue* queue);

 private:
  friend class CallLoop;
  Call* const call_;
  const std::function<void(bool)> on_event_;
};

// A call in progress. Deleted by its loop when it has finished and no operation is open.
class Call {
 public:
  virtual ~Call() = default;
  // The server is draining: end soon, with UNAVAILABLE (kDraining) where work remains.
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
  // Begins to wait for a first event of `call`, which the loop owns from now on. Before Start, or on the loop's thread.
  void Adopt(std::unique_ptr<Call> call);

  void Start();
  // From any thread: asks every call to drain.
  void Drain();
  // After Server::Shutdown returned, which has cancelled all calls: the thread ends when the last of them has. Until
  // then their events begin more operations, as the Finish after a Read that failed, so the queue stays open for them.
  void ShutdownAndJoin();

 private:
  void Run();
  void HandleEvent(CallEvent* event, bool ok);
  void DrainCalls();

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::thread thread_;
  std::set<Call*> calls_;  // Touched by the loop's thread only (and before Start).
  grpc::Alarm drain_alarm_;
  grpc::Alarm end_alarm_;
};

// The service as gRPC sees it: calls are told of when their headers have come, and what is received of them is their
// handler's to say. Of a method with one request gRPC tells nobody before that request is there as a whole, and holds
// what has come of it, or a thread that waits for it. So all are streams of bytes here, which nobody sees on the wire.
using RawStream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

class RawService final : public v1::RoutingReplay::Service {
 public:
  RawService();

  // The next call of `method`, a name of the service's; as RequestAppend of a generated service.
  void RequestCall(const char* method, grpc::ServerContext* call, RawStream* stream, grpc::CompletionQueue* call_queue,
                   grpc::ServerCompletionQueue* queue, void* tag);
};

// What a call asks of a store that may wait. Of one call, one thing at a time, which keeps the order of what a call
// asks. Used on the loop's thread.
class StoreWork {
 public:
  // `on_done` is called on the loop's thread, or by Start.
  StoreWork(Call* call, std::function<void()> on_done)
      : done_(call, [this](bool) { Done(); }), on_done_(std::move(on_done)) {}

  // Calls `work`, which may touch nothing of the call that the loop's thread uses while busy(), and then on_done.
  // `workers`: null of a store that never waits: then both are called at once, as a change of threads would cost more
  // than they do. Errors as those of WorkerPool::Run: neither is called.
  absl::Status Start(WorkerPool* workers, const std::string& owner, CallLoop& loop, std::function<void()> work) {
    busy_ = true;
    if (workers == nullptr) {
      work();
      Done();
      return absl::OkStatus();
    }
    absl::Status taken = workers->Run(owner, [this, &loop, work = std::move(work)] {
      work();
      done_.Post(alarm_, loop.queue());  // The last thing: the call may end with it.
    });
    busy_ = taken.ok();
    if (taken.ok()) done_.Begin();  // Its event is taken on this thread, so later.
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

// Where calls are served. All of it outlives them.
struct CallHome {
  ServiceContext& context;
  RawService& service;
  CallLoop& loop;
};

struct UnaryCaller {
  const grpc::ServerContext& call;
  const CallRecord& record;
  // What the answer takes, of ServiceContext::control_memory: to be held until it is taken.
  ByteReservation& memory;
};

// Of a request without payload: it is parsed by protobuf, and could be written so that its objects take thirty times
// its length. Ten thousand of the longest sample ids, and as much again.
inline constexpr int64_t kMaxControlBytes = 4 << 20;

struct UnaryMethod {
  const char* name;
  // The answer to a request, of which nothing is left. May wait for the store. Asks whether the caller may; errors are
  // the call's: INVALID_ARGUMENT if the bytes cannot be parsed.
  std::function<absl::StatusOr<grpc::ByteBuffer>(ServiceContext&, const UnaryCaller&, grpc::ByteBuffer& request)>
      answer;
  // A longer request is RESOURCE_EXHAUSTED (kLength), before it waits for a thread, where it takes memory.
  int64_t max_bytes = kMaxControlBytes;
};

// Put: one append in one call, counted against the budget when it arrives.
const UnaryMethod& PutMethod();
// Every method of the service but Append, Put and Read.
const std::vector<UnaryMethod>& ControlMethods();

// Each waits on the loop for the next call of its kind, which makes its own successor when it comes.
void ListenForAppends(const CallHome& home);
void ListenForReads(const CallHome& home);
// `workers` answer; null: the loop's thread, where the store never waits. They must be finished before the loop is shut
// down.
void Listen(const CallHome& home, const UnaryMethod& method, WorkerPool* workers);

// Who calls, as of now; asked again for every message of a stream. Errors as AccessControl::Identify; counted.
absl::StatusOr<Permissions> Identify(ServiceContext& context, const grpc::ServerContextBase& call);
// Who shares what the server has with others: the bearer of a token, however it is sent, or a connection where there
// are none.
std::string OwnerOf(const ServiceContext& context, const grpc::ServerContextBase& call);
// Whether `rpc` is allowed on the run. Errors as Permissions::Check; counted.
absl::Status Allow(ServiceContext& context, const Permissions& permissions, Rpc rpc, absl::string_view run);
// Both.
absl::Status Authorize(ServiceContext& context, const grpc::ServerContextBase& call, Rpc rpc, absl::string_view run);
// For a call that names no run: one of the scopes, on whatever run.
absl::StatusOr<Permissions> AuthorizeAnywhere(ServiceContext& context, const grpc::ServerContextBase& call, Rpc rpc);

class ServedCall : public Call {
 public:
  // Waits for the next call of the method.
  static void Await(std::unique_ptr<ServedCall> call);

 protected:
  ServedCall(const CallHome& home, const char* method)
      : home_(home), context_(home.context), loop_(home.loop), method_(method) {}

  virtual std::unique_ptr<ServedCall> Successor() const = 0;
  // The caller may: it is known who calls, and there is room.
  virtual void OnAdmitted() { ReceiveRequest(); }
  virtual void OnRequest() {}
  virtual void OnWorked() = 0;  // What StartWork began is done.
  virtual void OnWritten(bool ok) {}
  virtual void OnStallLook() {}  // Once per stall_timeout, see WatchForStalls.
  virtual void OnTakesNothing() { grpc_context_.TryCancel(); }
  virtual void OnGone() {}  // The call is over, by its end here or because its client went away.
  virtual void OnEnded() { SetFinished(); }
  virtual void FinishWith(const absl::Status& status) = 0;

  // Of a call with one request; the next event is OnRequest, or the call's end.
  void ReceiveRequest();
  // See StoreWork. Errors end the call.
  absl::Status StartWork(WorkerPool* workers, std::function<void()> work) {
    return work_.Start(workers, OwnerOf(context_, grpc_context_), loop_, std::move(work));
  }
  // Sends a message; the next event is OnWritten. One at a time.
  void Write(grpc::ByteBuffer message);
  bool writing() const { return writing_; }
  int64_t writes() const { return writes_; }  // Completed.
  // From here on the call is looked at once per stall_timeout. OnTakesNothing: a write was open at two looks in a row.
  void WatchForStalls() { stall_alarm_.Set(loop_.queue(), StallTime(), stall_check_.Begin()); }
  bool has_arrived() const { return record_.has_value(); }
  // What there is to do before gRPC is told of the end.
  void End(const absl::Status& status);
  // Ends it. `keep_place`: it goes on counting as one of its connection's calls.
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
  // The call's place among those of its connection, given up with its end: before that is told, but for an answer that
  // is held until the peer takes it.
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
  // It is known who calls, and the connection has not too many calls. Errors as Identify and ConnectionCalls::Enter,
  // and DrainingError.
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
  int64_t writes_at_look_ = -1;  // At the last look that found one open.
};

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_SERVED_CALL_H_
