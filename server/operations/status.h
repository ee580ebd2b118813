// The status of a server: computed on demand, and shown to Prometheus, to programs as JSON, and to people as one HTML
// page, which loads nothing and needs no JavaScript.
#ifndef SERVER_OPERATIONS_STATUS_H_
#define SERVER_OPERATIONS_STATUS_H_

#include <prometheus/metric_family.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/clock.h"
#include "server/operations/call_record.h"
#include "server/operations/metrics.h"
#include "server/store/store.h"

namespace routing_replay::server {

struct ProcessUsage {
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  int64_t threads = 0;
  int64_t open_fds = 0;
  int64_t max_fds = 0;
};

// Returns the current values. Thread-safe.
ProcessUsage LookAtProcess();

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
  std::optional<Store::Totals> totals;  // Absent while the store is unhealthy, because then it is not asked.
  Metrics::Versions versions;
  std::optional<std::chrono::system_clock::time_point> certificate_expiry;
};

// The spill counters, each with the name of its metric.
inline std::vector<std::pair<const char*, int64_t>> SpillCounters(const Store::Totals::Spill& spill) {
  return {{"routing_replay_spilled_samples_total", spill.samples},
          {"routing_replay_spilled_bytes_total", spill.bytes},
          {"routing_replay_spill_loads_total", spill.loads},
          {"routing_replay_spill_lost_blocks_total", spill.lost_blocks},
          {"routing_replay_spill_failures_total", spill.write_failures}};
}

// The server's figures that are computed on demand, for /metrics, the JSON and the page. If the server is not `serving`
// yet, only those of the process; then `status` needs only version, start, readiness and certificate.
std::vector<prometheus::MetricFamily> FiguresOf(const ServerStatus& status, bool serving = true);

// Returns the status as one line of JSON, whatever characters the names in it contain. `runs`: those of the store;
// absent while they are not known, and then the JSON has no "runs". `counters` come from Metrics::Counters.
std::string StatusJson(const ServerStatus& status, const std::optional<std::vector<RunState>>& runs,
                       const Series& counters, const std::vector<CallTrouble>& troubles);

struct StatusPageInput {
  const ServerStatus& status;
  std::vector<RunState> runs;
  const Series& counters;  // As Metrics::Counters.
  const std::vector<CallTrouble>& troubles;
  std::string settings;  // In YAML.
  std::chrono::system_clock::time_point now;
};

// The text of status_page.html, which the build embeds in the program.
extern const char kStatusPageTemplate[];

// The page shows at most this many runs, those with the most bytes.
inline constexpr size_t kMostRuns = 50;

// Every value is escaped.
std::string StatusPage(const StatusPageInput& input);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_STATUS_H_
