// Removes idle samples, a bounded batch at a time.
#ifndef SERVER_OPERATIONS_SWEEPER_H_
#define SERVER_OPERATIONS_SWEEPER_H_

#include <chrono>
#include <thread>

#include "proto/wire/mutex.h"
#include "server/operations/metrics.h"
#include "server/store/store.h"

namespace routing_replay {

// Sweeps from construction to destruction on a thread of its own. `store` and `metrics` must outlive it.
class Sweeper {
 public:
  Sweeper(Store& store, Metrics& metrics, std::chrono::milliseconds interval);
  ~Sweeper();

 private:
  void Run(std::chrono::milliseconds interval);

  Store& store_;
  Metrics& metrics_;
  Mutex mutex_;
  CondVar stop_changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace routing_replay

#endif  // SERVER_OPERATIONS_SWEEPER_H_
