// Calls that may wait: on the caller's thread, or on a thread of the library with their end in a queue.
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
#include "routing_replay/c_api.h"

namespace routing_replay::c_api {

// Makes threads when they are needed, and ends them when they were idle for some seconds. Thread-safe.
class Threads {
 public:
  static constexpr size_t kMost = 256;
  // Returns true if it is done; if not, because the process forked, it runs again in its place of the order.
  using Work = std::function<bool()>;

  // The library's; never destroyed.
  static Threads& Shared();

  // Runs `work` on one of the threads soon, in the order of the calls as far as there are threads. False, with `work`
  // unchanged, if there is no thread and none can be made.
  bool Run(Work& work);

  // Around a fork. Ends the threads, each when its work has ended; returns true if all have ended in time.
  void Rest();
  bool AwaitRest(Clock::Time deadline);
  void GoOn();
  // In the child: no work is waiting.
  void BeginAnew();

 private:
  using Running = std::list<std::thread>;

  void Loop(Running::iterator self);
  // Returns true if there is another thread now.
  bool Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar work_;
  CondVar ended_;
  std::map<uint64_t, Work> waiting_ ABSL_GUARDED_BY(mutex_);  // By their place in the order.
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  Running running_ ABSL_GUARDED_BY(mutex_);
  Running gone_ ABSL_GUARDED_BY(mutex_);  // The last thread that ended, after it joined those before it.
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  bool resting_ ABSL_GUARDED_BY(mutex_) = false;
};

// What rr_call.timeout_ms applies to.
enum class Timeout {
  kOfCall,  // The whole call, retries included.
  kOfWork,  // `work` uses it itself, or not at all.
};

// Runs `work` on this thread if `call` is null or has no queue, and returns its end; else on a thread of the library,
// and its end goes into the queue. All waits of `work` observe the call's cancellation and timeout
// (client/call/cancellation.h). INVALID_ARGUMENT for a tag that is already in use by a call in progress.
//
// A fork of the process interrupts `work` where it waits, and runs it again from its beginning, in the parent only. Use
// client::KeepCall, or Once around it, for what must not happen twice.
//
//   return Guard([&]() -> CallEnd {
//     … convert the arguments …
//     return Perform(call, [=] -> CallEnd { … });
//   });
//
// `work` must own what it uses, except payloads and outputs. It writes outputs only at its end, when nothing can fail
// any more.
//
// `at_once`, if given, is called first on the caller's thread if there is a queue: it returns the end of a call that
// need not wait, or nothing.
CallEnd Perform(const rr_call* call, std::function<CallEnd()> work, Timeout timeout = Timeout::kOfCall,
                const std::function<std::optional<CallEnd>()>& at_once = nullptr);

// The timeout of a call, or `otherwise`.
inline std::chrono::milliseconds TimeoutOf(const rr_call* call, std::chrono::milliseconds otherwise) {
  return call != nullptr && call->timeout_ms >= 0 ? std::chrono::milliseconds(call->timeout_ms) : otherwise;
}

// `work` that is not interrupted once it has begun.
template <typename Work>
auto Once(Work work) {
  return [work = std::move(work)]() -> CallEnd {
    if (absl::Status kept = client::KeepCall(); !kept.ok()) return kept;
    return work();
  };
}

// For calls of one object that run in the order in which they were made: `work` gets its place in the order and waits
// for its turn. `calling` is held while a call with a queue takes its place and then a thread, so that the first place
// in the order always has a thread.
CallEnd PerformInOrder(const rr_call* call, client::CallOrder& order, Mutex& calling,
                       std::function<CallEnd(std::shared_ptr<const client::CallOrder::Place>)> work);

}  // namespace routing_replay::c_api

#endif  // CLIENT_C_API_CALLS_H_
