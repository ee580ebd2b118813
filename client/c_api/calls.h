// Performs calls that may wait: on the caller's thread, or on a thread of the library with a completion in a queue.
#ifndef CLIENT_C_API_CALLS_H_
#define CLIENT_C_API_CALLS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "client/c_api/gate.h"
#include "client/call/call_order.h"
#include "client/call/cancellation.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/c_api.h"

namespace routing_replay::c_api {

// Makes threads when they are needed, and ends them when they were idle for some seconds. Thread-safe.
class Threads {
 public:
  // Returns true if the work is done. If a fork interrupted it, returns false, and the work runs again, before work
  // that was passed to Run later.
  using Work = std::function<bool()>;

  // The only instance in the library; never destroyed.
  static Threads& Shared();

  // Runs `work` on a thread soon; work starts in the order of the calls. Returns false, with `work` unchanged, if there
  // is no thread and none can be started.
  bool Run(Work& work);

  // For a fork. After Rest each thread ends when its current work has ended; AwaitRest returns true if all did in time.
  void Rest();
  bool AwaitRest(Clock::Time deadline);
  void GoOn();
  // In the child of a fork: forgets all waiting work.
  void BeginAnew();

 private:
  using Running = std::list<std::thread>;

  void Loop(Running::iterator self);
  // Starts a thread. Returns true if it started.
  bool Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar work_;
  CondVar ended_;
  std::map<uint64_t, Work> waiting_ ABSL_GUARDED_BY(mutex_);  // Waiting work by its place in the order.
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  Running running_ ABSL_GUARDED_BY(mutex_);
  // The thread that ended last; each ending thread joins the one that ended before it.
  Running gone_ ABSL_GUARDED_BY(mutex_);
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  bool resting_ ABSL_GUARDED_BY(mutex_) = false;
};

// What rr_call.timeout_ms applies to.
enum class Timeout {
  kOfCall,  // The whole call, retries included.
  kOfWork,  // `work` applies the timeout itself, or ignores it.
};

// If `call` is null or has no queue, runs `work` on this thread and returns its result. Otherwise runs `work` on a
// thread of the library and puts its completion into the queue. All waits in `work` end with the call's cancellation
// and timeout (client/call/cancellation.h). INVALID_ARGUMENT if a call in progress already uses the tag.
//
// A fork of the process interrupts `work` while it waits, and afterwards runs it again from its beginning, in the
// parent only. If something must not happen twice, call client::KeepCall before it, or wrap `work` in Once.
//
//   return Guard([&]() -> CallEnd {
//     … convert the arguments …
//     return Perform(call, [=] -> CallEnd { … });
//   });
//
// `work` must own everything that it uses, except payloads and outputs. It must write outputs only at its end, when
// nothing can fail any more.
//
// `at_once`, if given, is called first, on the caller's thread, if there is a queue. It returns the result if the call
// need not wait, else nothing.
CallEnd Perform(const rr_call* call, std::function<CallEnd()> work, Timeout timeout = Timeout::kOfCall,
                const std::function<std::optional<CallEnd>()>& at_once = nullptr);

// Returns the timeout of the call, or `otherwise` if it has none.
inline std::chrono::milliseconds TimeoutOf(const rr_call* call, std::chrono::milliseconds otherwise) {
  return call != nullptr && call->timeout_ms >= 0 ? std::chrono::milliseconds(call->timeout_ms) : otherwise;
}

// Makes work that a fork does not interrupt once it has begun.
template <typename Work>
auto Once(Work work) {
  return [work = std::move(work)]() -> CallEnd {
    RR_RETURN_IF_ERROR(client::KeepCall());
    return work();
  };
}

// Like Perform, for calls of one object that must run in the order in which they were made. `work` gets its place in
// this order, and must call Await on it to wait for its turn. The lock `calling` is held while a call with a queue
// takes its place and then a thread, so that the first place in the order always has a thread.
CallEnd PerformInOrder(const rr_call* call, client::CallOrder& order, Mutex& calling,
                       std::function<CallEnd(std::shared_ptr<const client::CallOrder::Place>)> work);

}  // namespace routing_replay::c_api

#endif  // CLIENT_C_API_CALLS_H_
