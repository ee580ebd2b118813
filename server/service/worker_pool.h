// Threads for work that may wait, for what runs on threads that must not.
#ifndef SERVER_SERVICE_WORKER_POOL_H_
#define SERVER_SERVICE_WORKER_POOL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/mutex.h"

namespace routing_replay {

// Thread-safe.
class WorkerPool {
 public:
  struct Limits {
    size_t threads = 64;  // Made as they are needed.
    size_t waiting = 1024;
  };
  explicit WorkerPool(const Limits& limits) : limits_(limits) {}
  ~WorkerPool() { Finish(); }

  // Calls `work` once on one of the threads, those that came earlier first. RESOURCE_EXHAUSTED (kOverBudget, field
  // control-calls, retry_after_ms) if too many wait, UNAVAILABLE (kDraining) after Finish; then `work` is not called.
  absl::Status Run(std::function<void()> work);
  // Waits for all work that was taken. Not on one of the threads, and on one thread at a time.
  void Finish();

 private:
  void Work();

  const Limits limits_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace routing_replay

#endif  // SERVER_SERVICE_WORKER_POOL_H_
