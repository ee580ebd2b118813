// The status of a server: computed on demand (except the census), and shown to Prometheus, to programs as JSON, and to
// people as one HTML page, which loads nothing and needs no JavaScript.
#ifndef SERVER_OPERATIONS_STATUS_H_
#define SERVER_OPERATIONS_STATUS_H_

#include <prometheus/metric_family.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/clock.h"
#include "routing_replay/wire/sample.h"
#include "server/operations/call_record.h"
#include "server/operations/metrics.h"
#include "server/store/store.h"

namespace routing_replay::server {

// What is stored, by run and weight version: counted by visiting a limited number of samples.
struct Census {
  struct Share {
    int64_t samples = 0;  // Samples with rows of this version; one with several versions counts in each.
    int64_t rows = 0;
    int64_t bytes = 0;  // A sample's bytes in proportion to its rows.
  };
  struct Run {
    std::string run;
    int64_t samples = 0;  // Number of samples in the whole run; the shares below …
    int64_t sealed_samples = 0;
    int64_t committed_rows = 0;
    int64_t stored_bytes = 0;
    int64_t looked_at = 0;  // … cover only this many visited samples.
    std::map<int64_t, Share> by_version;
  };
  std::vector<Run> runs;        // By name.
  int64_t oldest_idle_ms = -1;  // Longest idle time of the visited samples; -1 if there are none.
  int64_t samples = 0;          // Number of samples in the store …
  int64_t looked_at = 0;        // … and number of samples visited.
};

// Visits at most `limit` samples, the same number of each run, the first ones by id. Errors of the store; CANCELLED
// soon after `stop` returns true.
absl::StatusOr<Census> TakeCensus(Store& store, int64_t limit, const std::function<bool()>& stop);

struct ProcessUsage {
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  int64_t threads = 0;
  int64_t open_fds = 0;
  int64_t max_fds = 0;
};

// Present values. Thread-safe.
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
  Store::Totals totals;
  Metrics::Versions versions;
  std::shared_ptr<const Census> census;  // Null: none yet.
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

// The server's figures that are computed on demand. /metrics, the JSON and the page all show this list. If the server
// is not `serving` yet, only those of the process; then `status` needs only version, start, readiness and certificate.
std::vector<prometheus::MetricFamily> FiguresOf(const ServerStatus& status, bool serving = true);

// Returns the status as one line of JSON, whatever characters the names in it contain. `counters` come from
// Metrics::Counters.
std::string StatusJson(const ServerStatus& status, const Series& counters, const std::vector<CallTrouble>& troubles);

struct StatusPageInput {
  const ServerStatus& status;
  const Series& counters;  // As Metrics::Counters.
  const std::vector<CallTrouble>& troubles;
  std::string settings;  // In YAML.
  std::chrono::system_clock::time_point now;
};

// The text of status_page.html, which the build embeds in the program.
extern const char kStatusPageTemplate[];

// The page shows at most this many pairs of run and weight version, those with the most bytes.
inline constexpr size_t kMostShares = 50;

// Every value is escaped.
std::string StatusPage(const StatusPageInput& input);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_STATUS_H_
