// One look at a server: what its gauges, its status as JSON and its page show, so that all three say the same.
#ifndef SERVER_OPERATIONS_SERVER_STATUS_H_
#define SERVER_OPERATIONS_SERVER_STATUS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/clock.h"
#include "server/admission/byte_budget.h"
#include "server/operations/census.h"
#include "server/operations/readiness.h"
#include "server/operations/store_monitor.h"
#include "server/operations/watched_store.h"
#include "server/store/store.h"

namespace routing_replay::server {

struct ServerStatus {
  std::string version;
  std::string store;
  std::vector<std::string> listeners;
  std::chrono::system_clock::time_point started;
  Clock::Duration uptime{};
  absl::Status ready;
  absl::Status store_health;
  bool draining = false;
  int64_t memory_budget_bytes = 0;
  int64_t memory_used_bytes = 0;
  int64_t resident_bytes = 0;  // Of the process.
  Store::Totals totals;
  std::optional<int64_t> lost_samples;  // OpenedStore::lost_samples.
  int64_t newest_put = kUnknownWeightVersion;
  int64_t newest_get = kUnknownWeightVersion;
  int64_t version_lag = 0;               // NewestVersions::lag.
  std::shared_ptr<const Census> census;  // Null: none yet.
  std::optional<std::chrono::system_clock::time_point> certificate_expiry;
};

// Where a status comes from. What is referred to outlives it.
struct StatusSource {
  const Clock& clock;
  ByteBudget& budget;
  Store& store;
  const Readiness& readiness;
  const NewestVersions& versions;
  const StoreMonitor& monitor;
  std::vector<std::string> listeners;
  std::chrono::system_clock::time_point started;
  Clock::Time started_at;
  std::function<std::optional<std::chrono::system_clock::time_point>()> certificate_expiry;
  std::shared_ptr<const std::atomic<int64_t>> lost_samples;  // OpenedStore::lost_samples.

  // As of now. A store that is not well is not asked: what is known of its contents is the last census, if any.
  ServerStatus Look() const;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_SERVER_STATUS_H_
