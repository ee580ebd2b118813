// Threads that keep a server in order: what they do, and how often.
#ifndef SERVER_OPERATIONS_UPKEEP_H_
#define SERVER_OPERATIONS_UPKEEP_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "proto/wire/mutex.h"

namespace routing_replay::server {

// Calls `work` on a thread of its own from construction to destruction, the first time at once; `work` says after how
// long it wants to be called again. Destruction waits for a call that is going on.
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

// When freed memory is given back to the system: the allocator keeps what was freed for whoever comes next, which makes
// a busy server faster, and after a spike would hold for ever what nobody uses. Not thread-safe.
class MemoryTrim {
 public:
  // So much more than what is accounted is resident of a server that has nothing to give back.
  static constexpr int64_t kSlack = int64_t{48} << 20;

  // Whether to give back now what is free: the server is idle, far more is resident than `accounted` bytes, and also
  // than what was left the last time.
  bool Look(int64_t resident, int64_t accounted, bool idle);
  void Trimmed(int64_t left) { left_ = left; }

 private:
  std::optional<int64_t> left_;
};

// Looks every second. `accounted` says what the process has good reason to hold; thread-safe.
std::unique_ptr<PeriodicThread> StartMemoryTrim(std::function<int64_t()> accounted);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_UPKEEP_H_
