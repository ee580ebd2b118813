// One completion queue, one thread. Every call lives on the loop it arrived at, so calls need no locks: whatever
// happens to a call happens on its loop's thread.
#ifndef SERVER_SERVICE_CALL_LOOP_H_
#define SERVER_SERVICE_CALL_LOOP_H_

#include <grpcpp/alarm.h>
#include <grpcpp/server_builder.h>

#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <utility>

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
  // After Server::Shutdown returned: no new operations; the thread ends when all open ones have.
  void ShutdownAndJoin();

 private:
  void Run();
  void DrainCalls();

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::thread thread_;
  std::set<Call*> calls_;  // Touched by the loop's thread only (and before Start).
  grpc::Alarm drain_alarm_;
};

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_CALL_LOOP_H_
