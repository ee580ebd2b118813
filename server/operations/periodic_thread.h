// Periodic work of a server besides its calls, such as removing expired samples.
#ifndef SERVER_OPERATIONS_PERIODIC_THREAD_H_
#define SERVER_OPERATIONS_PERIODIC_THREAD_H_

#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "proto/wire/mutex.h"

namespace routing_replay::server {

// Calls `work` on a new thread from construction to destruction, the first time at once. `work` returns the time until
// its next call. Destruction waits for a running call.
class PeriodicThread {
 public:
  using Work = std::function<std::chrono::milliseconds()>;

  explicit PeriodicThread(Work work) : work_(std::move(work)), thread_([this] { Run(); }) {}
  ~PeriodicThread() {
    {
      MutexLock lock(mutex_);
      stop_ = true;
    }
    stop_changed_.NotifyAll();
    thread_.join();
  }

 private:
  void Run() {
    while (true) {
      const auto next = std::chrono::steady_clock::now() + work_();
      MutexLock lock(mutex_);
      while (!stop_ && std::chrono::steady_clock::now() < next) stop_changed_.WaitUntil(mutex_, next);
      if (stop_) return;
    }
  }

  const Work work_;
  Mutex mutex_;
  CondVar stop_changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_PERIODIC_THREAD_H_
