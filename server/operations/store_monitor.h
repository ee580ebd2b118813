// Looks after a store while it serves: whether it is well, and what is in it.
#ifndef SERVER_OPERATIONS_STORE_MONITOR_H_
#define SERVER_OPERATIONS_STORE_MONITOR_H_

#include <atomic>
#include <chrono>
#include <memory>

#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "server/operations/census.h"
#include "server/operations/periodic_thread.h"
#include "server/operations/readiness.h"

namespace routing_replay::server {

// From construction to destruction, on a thread of its own. Thread-safe.
class StoreMonitor {
 public:
  static constexpr std::chrono::milliseconds kHealthInterval = std::chrono::seconds(2);
  // A census takes no more than one part in 50 of the time, and comes no more often than this.
  static constexpr std::chrono::milliseconds kCensusInterval = std::chrono::seconds(10);
  static constexpr int64_t kCensusSamples = 20000;

  // Tells `readiness` how the store is; the first time before this returns. All outlive it.
  StoreMonitor(Store& store, Readiness& readiness, const Clock& clock);
  ~StoreMonitor() { stop_ = true; }

  // The last one; null before the first.
  std::shared_ptr<const Census> census() const;

 private:
  void LookAtStore();
  void CountSamples();

  Store& store_;
  Readiness& readiness_;
  const Clock& clock_;
  Clock::Time next_census_;
  std::atomic<bool> stop_{false};
  mutable Mutex mutex_;
  std::shared_ptr<const Census> census_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<PeriodicThread> thread_;  // Ends first.
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_STORE_MONITOR_H_
