#include "server/operations/store_monitor.h"

#include <algorithm>
#include <utility>

#include "server/operations/log/event_log.h"

namespace routing_replay::server {

StoreMonitor::StoreMonitor(Store& store, Readiness& readiness, const Clock& clock)
    : store_(store), readiness_(readiness), clock_(clock), next_census_(clock.Now()) {
  LookAtStore();
  thread_ = std::make_unique<PeriodicThread>([this] {
    LookAtStore();
    if (readiness_.store_health().ok() && clock_.Now() >= next_census_) CountSamples();
    return kHealthInterval;
  });
}

std::shared_ptr<const Census> StoreMonitor::census() const {
  MutexLock lock(mutex_);
  return census_;
}

void StoreMonitor::LookAtStore() {
  const absl::Status health = store_.Health();
  const absl::Status before = readiness_.store_health();
  readiness_.SetStoreHealth(health);
  if (health == before) return;
  if (health.ok()) {
    LogEvent(LogLevel::kInfo, "store_healthy", "");
  } else {
    LogEvent(LogLevel::kError, "store_unhealthy", health.message(),
             {{"code", absl::StatusCodeToString(health.code())}});
  }
}

void StoreMonitor::CountSamples() {
  const Clock::Time began = clock_.Now();
  auto census = TakeCensus(store_, kCensusSamples, [this] { return stop_.load(); });
  const Clock::Time ended = clock_.Now();
  next_census_ = ended + std::max<Clock::Duration>(kCensusInterval, 50 * (ended - began));
  if (!census.ok()) return;  // What the store says is counted already, and the last one stays.
  auto shared = std::make_shared<const Census>(*std::move(census));
  MutexLock lock(mutex_);
  census_ = std::move(shared);
}

}  // namespace routing_replay::server
