// Calls that may wait: on the caller's thread, or on one of the library's with an end in a queue.
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

// Makes threads as they are needed, and lets them go when they were idle for some seconds. Thread-safe.
class Threads {
 public:
  static constexpr size_t kMost = 256;
  // Whether it is done; if not, it is run again in its place of the order, when the process has forked.
  using Work = std::function<bool()>;

  // Of the library; lives for ever.
  static Threads& Shared();

  // Runs `work` on one of them soon, in the order of the calls as far as there are threads. False, and `work` is as it
  // was, where there is none, and none to be had.
  bool Run(Work& work);

  // Around a fork. Ends the threads, each when its work has ended; whether all have by then.
  void Rest();
  bool AwaitRest(Clock::Time deadline);
  void GoOn();
  // In the child: nothing waits.
  void BeginAnew();

 private:
  using Running = std::list<std::thread>;

  void Loop(Running::iterator self);
  // Whether there is another one now.
  bool Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar work_;
  CondVar ended_;
  std::map<uint64_t, Work> waiting_ ABSL_GUARDED_BY(mutex_);  // By their place in the order.
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  Running running_ ABSL_GUARDED_BY(mutex_);
  Running gone_ ABSL_GUARDED_BY(mutex_);  // The last that ended, after it joined those before it.
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  bool resting_ ABSL_GUARDED_BY(mutex_) = false;
};

// What rr_call.timeout_ms is for.
enum class Timeout {
  kOfCall,  // The whole call, retries included.
  kOfWork,  // `work` looks at it itself, or not at all.
};

// Does `work` here where `call` has no queue (or is null), and gives how it ended; else on a thread of the library, and
// its end goes into the queue. All waits of `work` see the call's cancellation and timeout
// (client/call/cancellation.h). INVALID_ARGUMENT for a tag that is under way already.
//
// A fork of the process breaks `work` off where it waits, and it is made again from its beginning, in the parent only:
// client::KeepCall, or Once around it, for what must not be done twice.
//
//   return Guard([&]() -> CallEnd {
//     … convert the arguments …
//     return Perform(call, [=] -> CallEnd { … });
//   });
//
// `work` must own what it uses, but for payloads and outputs. Outputs are for its end, when nothing can fail any more.
//
// `at_once`, where there is one, is asked first where there is a queue, on the caller's thread: how the call has ended
// without waiting, or nothing.
CallEnd Perform(const rr_call* call, std::function<CallEnd()> work, Timeout timeout = Timeout::kOfCall,
                const std::function<std::optional<CallEnd>()>& at_once = nullptr);

// What a call says of its timeout, or `otherwise`.
inline std::chrono::milliseconds TimeoutOf(const rr_call* call, std::chrono::milliseconds otherwise) {
  return call != nullptr && call->timeout_ms >= 0 ? std::chrono::milliseconds(call->timeout_ms) : otherwise;
}

// `work` that is not broken off once it has begun.
template <typename Work>
auto Once(Work work) {
  return [work = std::move(work)]() -> CallEnd {
    if (absl::Status kept = client::KeepCall(); !kept.ok()) return kept;
    return work();
  };
}

// The same for calls of one object that are done in the order in which they were made. `work` is given their place, and
// waits for its turn. `calling` is held where one with a queue takes its place and then a thread: the first place in
// the order always has one.
CallEnd PerformInOrder(const rr_call* call, client::CallOrder& order, Mutex& calling,
                       std::function<CallEnd(std::shared_ptr<const client::CallOrder::Place>)> work);

}  // namespace routing_replay::c_api

#endif  // CLIENT_C_API_CALLS_H_
