// Removes idle samples, a bounded batch at a time.
#ifndef SERVER_OPERATIONS_SWEEPER_H_
#define SERVER_OPERATIONS_SWEEPER_H_

#include <chrono>

#include "server/operations/metrics.h"
#include "server/operations/periodic_thread.h"
#include "server/store/store.h"

namespace routing_replay::server {

// Sweeps from construction to destruction on a thread of its own. `store` and `metrics` must outlive it.
class Sweeper {
 public:
  Sweeper(Store& store, Metrics& metrics, std::chrono::milliseconds interval);

 private:
  PeriodicThread thread_;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_SWEEPER_H_
