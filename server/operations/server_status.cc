#include "server/operations/server_status.h"

#include <unistd.h>

#include <fstream>

namespace routing_replay::server {
namespace {

int64_t ResidentBytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

Store::Totals TotalsOf(const Census& census) {
  Store::Totals totals;
  for (const Census::Run& run : census.runs) {
    ++totals.runs;
    totals.samples += run.samples;
    totals.stored_bytes += run.stored_bytes;
  }
  return totals;
}

}  // namespace

ServerStatus StatusSource::Look() const {
  ServerStatus status{.version = ROUTING_REPLAY_VERSION,
                      .store = store.name(),
                      .listeners = listeners,
                      .started = started,
                      .uptime = clock.Now() - started_at,
                      .ready = readiness.Get(),
                      .store_health = readiness.store_health(),
                      .draining = readiness.draining(),
                      .memory_budget_bytes = budget.limit(),
                      .memory_used_bytes = budget.used(),
                      .resident_bytes = ResidentBytes(),
                      .newest_put = versions.put(),
                      .newest_get = versions.get(),
                      .version_lag = versions.lag(),
                      .census = monitor.census()};
  if (status.store_health.ok()) {
    status.totals = store.GetTotals();
  } else if (status.census != nullptr) {
    status.totals = TotalsOf(*status.census);
  }
  if (lost_samples != nullptr) status.lost_samples = lost_samples->load();
  if (certificate_expiry) status.certificate_expiry = certificate_expiry();
  return status;
}

}  // namespace routing_replay::server
