// One completion queue, one thread. Every call lives on the loop it arrived at, so calls need no locks: whatever
// happens to a call happens on its loop's thread. What it asks of a store that may wait is done by a worker, while the
// loop goes on with others.
#ifndef SERVER_SERVICE_CALL_LOOP_H_
#define SERVER_SERVICE_CALL_LOOP_H_

#include <grpcpp/alarm.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/async_stream.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "routing_replay/v1/routing_replay.grpc.pb.h"
#include "server/admission/worker_pool.h"

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
  bool finished() const { return finished_; }

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

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_CALL_LOOP_H_
