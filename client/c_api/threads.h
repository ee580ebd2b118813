// Threads for calls that wait.
#ifndef CLIENT_C_API_THREADS_H_
#define CLIENT_C_API_THREADS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <thread>

#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"

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

}  // namespace routing_replay::c_api

#endif  // CLIENT_C_API_THREADS_H_
