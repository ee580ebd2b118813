#include "server/operations/status_json.h"

#include <ctime>
#include <nlohmann/json.hpp>

namespace routing_replay::server {
namespace {

using nlohmann::ordered_json;

ordered_json RunsOf(const Census& census) {
  ordered_json runs = ordered_json::array();
  for (const Census::Run& run : census.runs) {
    ordered_json versions = ordered_json::array();
    for (const auto& [version, share] : run.by_version) {
      versions.push_back(
          {{"weight_version", version}, {"samples", share.samples}, {"rows", share.rows}, {"bytes", share.bytes}});
    }
    runs.push_back({{"run", run.run},
                    {"samples", run.samples},
                    {"sealed_samples", run.sealed_samples},
                    {"committed_rows", run.committed_rows},
                    {"stored_bytes", run.stored_bytes},
                    {"looked_at", run.looked_at},
                    {"weight_versions", std::move(versions)}});
  }
  return runs;
}

ordered_json TroublesOf(const std::vector<CallTrouble>& troubles) {
  ordered_json all = ordered_json::array();
  for (const CallTrouble& trouble : troubles) {
    all.push_back({{"last", FormatUtc(trouble.last)},
                   {"method", trouble.method},
                   {"code", trouble.code},
                   {"reason", trouble.reason},
                   {"field", trouble.field},
                   {"failed", trouble.failed},
                   {"count", trouble.count}});
  }
  return all;
}

}  // namespace

std::string FormatUtc(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

std::string StatusJson(const ServerStatus& status, const std::vector<std::pair<std::string, int64_t>>& counters,
                       const std::vector<CallTrouble>& troubles) {
  ordered_json json = {{"version", status.version},
                       {"started", FormatUtc(status.started)},
                       {"uptime_ms", std::chrono::duration_cast<std::chrono::milliseconds>(status.uptime).count()},
                       {"ready", status.ready.ok()},
                       {"not_ready_because", std::string(status.ready.message())},
                       {"draining", status.draining},
                       {"listeners", status.listeners},
                       {"store",
                        {{"name", status.store},
                         {"healthy", status.store_health.ok()},
                         {"trouble", std::string(status.store_health.message())},
                         {"runs", status.totals.runs},
                         {"samples", status.totals.samples},
                         {"stored_bytes", status.totals.stored_bytes}}},
                       {"memory",
                        {{"budget_bytes", status.memory_budget_bytes},
                         {"used_bytes", status.memory_used_bytes},
                         {"resident_bytes", status.resident_bytes}}},
                       {"newest_weight_version", {{"put", status.newest_put}, {"get", status.newest_get}}},
                       {"weight_version_lag", status.version_lag}};
  if (const auto& spill = status.totals.spill) {
    json["spill"] = {{"budget_bytes", spill->budget_bytes}, {"used_bytes", spill->disk_bytes}};
  }
  if (status.certificate_expiry) json["certificate_expiry"] = FormatUtc(*status.certificate_expiry);
  if (status.census != nullptr) {
    json["oldest_sample_idle_ms"] = status.census->oldest_idle_ms;
    json["runs"] = RunsOf(*status.census);
  }
  json["troubles"] = TroublesOf(troubles);
  for (const auto& [name, value] : counters) json["counters"][name] = value;
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace routing_replay::server
