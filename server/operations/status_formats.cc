#include "server/operations/status_formats.h"

#include <nlohmann/json.hpp>

#include <ctime>

#include "server/operations/event_log.h"

namespace routing_replay::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;

double Seconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

class Families {
 public:
  void Open(const std::string& name, const std::string& help) {
    MetricFamily family;
    family.name = "routing_replay_" + name;
    family.help = help;
    family.type = prometheus::MetricType::Gauge;
    families_.push_back(std::move(family));
  }
  // Of the family that was opened last.
  void Add(double value, std::vector<ClientMetric::Label> labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.gauge.value = value;
    families_.back().metric.push_back(std::move(metric));
  }
  void Gauge(const std::string& name, const std::string& help, double value) {
    Open(name, help);
    Add(value);
  }
  void Bytes(const std::string& name, const std::string& help, int64_t value) {
    Gauge(name, help, static_cast<double>(value));
  }
  void Counter(const std::string& full_name, const std::string& help, double value) {
    Open("", help);
    families_.back().name = full_name;
    families_.back().type = prometheus::MetricType::Counter;
    ClientMetric metric;
    metric.counter.value = value;
    families_.back().metric.push_back(std::move(metric));
  }
  // Under the name that processes of all kinds have.
  void Standard(const std::string& full_name, const std::string& help, double value) {
    Gauge("", help, value);
    families_.back().name = full_name;
  }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
};

void AddProcess(const ServerStatus& status, Families& out) {
  const ProcessUsage process = LookAtProcess();
  out.Counter("process_cpu_seconds_total", "CPU time of the process, user and system.", process.cpu_seconds);
  out.Standard("process_open_fds", "Open file descriptors.", static_cast<double>(process.open_fds));
  out.Standard("process_max_fds", "File descriptors that can be open.", static_cast<double>(process.max_fds));
  out.Standard("process_resident_memory_bytes", "Memory of the process.", static_cast<double>(process.resident_bytes));
  out.Standard("process_virtual_memory_bytes", "Address space of the process.",
               static_cast<double>(process.virtual_bytes));
  out.Standard("process_start_time_seconds", "When the process started, in seconds since 1970.",
               process.start_time_seconds);
  out.Standard("process_threads", "Threads of the process.", static_cast<double>(process.threads));
  out.Counter("routing_replay_log_lines_dropped_total",
              "Lines of the log that nobody took from standard error in time.", static_cast<double>(DroppedLogLines()));
  out.Open("build_info", "1; the version is in the label.");
  out.Add(1, {{"version", status.version}});
  out.Gauge("start_time_seconds", "When the server started, in seconds since 1970.", Seconds(status.started));
  out.Gauge("ready", "1 while clients are to be sent here, as /readyz says.", status.ready.ok());
  out.Gauge("draining", "1 while the server ends.", status.draining);
  if (status.certificate_expiry) {
    out.Gauge("certificate_expiry_timestamp_seconds", "When the certificate that is shown ends.",
              Seconds(*status.certificate_expiry));
  }
}

void AddStore(const ServerStatus& status, Families& out) {
  out.Gauge("store_healthy", "0 while the store takes no changes.", status.store_health.ok());
  out.Bytes("memory_budget_bytes", "What --memory-budget leaves for routing data.", status.memory_budget_bytes);
  out.Bytes("memory_used_bytes", "Bytes of that budget in use, credit included.", status.memory_used_bytes);
  out.Gauge("runs", "Runs in the store.", static_cast<double>(status.totals.runs));
  out.Gauge("samples", "Samples in the store.", static_cast<double>(status.totals.samples));
  out.Bytes("stored_bytes", "Bytes that committed rows take.", status.totals.stored_bytes);
  out.Open("newest_weight_version", "Highest weight version since the start that was put, or read; -1: none.");
  out.Add(static_cast<double>(status.newest_put), {{"operation", "put"}});
  out.Add(static_cast<double>(status.newest_get), {{"operation", "get"}});
  out.Gauge("weight_version_lag", "Newest version put minus that read last, of the run where it is largest.",
            static_cast<double>(status.version_lag));
  if (const auto& spill = status.totals.spill) {
    out.Bytes("spill_budget_bytes", "What the files of the spill directory may take.", spill->budget_bytes);
    out.Bytes("spill_used_bytes", "What they take.", spill->disk_bytes);
    for (const auto& [name, value] : SpillCounters(*spill)) {
      out.Counter(name, "Of the spill directory, since the start; see OPERATING.md.", static_cast<double>(value));
    }
  }
  if (status.lost_samples) {
    out.Counter("routing_replay_store_lost_samples_total",
                "Samples of which the store came back with less than was acknowledged, as far as this server found.",
                static_cast<double>(*status.lost_samples));
  }
  if (status.census != nullptr && status.census->oldest_idle_ms >= 0) {
    out.Gauge("oldest_sample_idle_seconds", "For how long the sample was not used that was not for longest.",
              static_cast<double>(status.census->oldest_idle_ms) / 1000);
  }
}

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

std::vector<MetricFamily> ProcessGaugesOf(const ServerStatus& status) {
  Families families;
  AddProcess(status, families);
  return families.Take();
}

std::vector<MetricFamily> GaugesOf(const ServerStatus& status) {
  Families families;
  AddProcess(status, families);
  AddStore(status, families);
  return families.Take();
}

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
