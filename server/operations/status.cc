#include "server/operations/status.h"

#include <sys/resource.h>
#include <unistd.h>
#include <kainjow/mustache.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/wire/human.h"
#include "server/log/event_log.h"

namespace routing_replay::server {
namespace {

const auto process_start = std::chrono::system_clock::now();

int64_t EntriesOf(const char* folder) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(folder, error);
  return error ? 0 : std::distance(begin(entries), end(entries));
}

using prometheus::ClientMetric;
using prometheus::MetricFamily;

double Seconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

class Families {
 public:
  // Adds a gauge. If the last gauge has the same name, adds a value with other labels to it.
  template <typename T>
  void Gauge(const char* name, const char* help, T value, std::vector<ClientMetric::Label> labels = {}) {
    Add(prometheus::MetricType::Gauge, name, help, std::move(labels)).gauge.value = static_cast<double>(value);
  }
  template <typename T>
  void Counter(const char* name, const char* help, T value) {
    Add(prometheus::MetricType::Counter, name, help, {}).counter.value = static_cast<double>(value);
  }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  ClientMetric& Add(prometheus::MetricType type, const char* name, const char* help,
                    std::vector<ClientMetric::Label> labels) {
    if (families_.empty() || families_.back().name != name) {
      families_.emplace_back();
      families_.back().name = name;
      families_.back().help = help;
      families_.back().type = type;
    }
    ClientMetric& metric = families_.back().metric.emplace_back();
    metric.label = std::move(labels);
    return metric;
  }

  std::vector<MetricFamily> families_;
};

void AddProcess(const ServerStatus& status, Families& out) {
  const ProcessUsage process = LookAtProcess();
  out.Counter("process_cpu_seconds_total", "CPU time of the process, user and system.",
              static_cast<double>(std::clock()) / CLOCKS_PER_SEC);
  out.Gauge("process_open_fds", "Open file descriptors.", process.open_fds);
  out.Gauge("process_max_fds", "Limit of open file descriptors.", process.max_fds);
  out.Gauge("process_resident_memory_bytes", "Resident memory of the process.", process.resident_bytes);
  out.Gauge("process_virtual_memory_bytes", "Address space of the process.", process.virtual_bytes);
  out.Gauge("process_start_time_seconds", "When the process started, in seconds since 1970.", Seconds(process_start));
  out.Gauge("process_threads", "Threads of the process.", process.threads);
  out.Counter("routing_replay_log_lines_dropped_total",
              "Log lines dropped because standard error was not read in time.", DroppedLogLines());
  out.Gauge("routing_replay_build_info", "Always 1; the label has the version.", 1, {{"version", status.version}});
  out.Gauge("routing_replay_start_time_seconds", "When the server started, in seconds since 1970.",
            Seconds(status.started));
  out.Gauge("routing_replay_ready", "1 while the server is ready for clients (/readyz answers 200).",
            status.ready.ok());
  out.Gauge("routing_replay_draining", "1 while the server shuts down.", status.draining);
  if (status.certificate_expiry) {
    out.Gauge("routing_replay_certificate_expiry_timestamp_seconds",
              "When the served TLS certificate expires, in seconds since 1970.", Seconds(*status.certificate_expiry));
  }
}

void AddStore(const ServerStatus& status, Families& out) {
  out.Gauge("routing_replay_store_healthy", "1 while the store accepts changes, 0 otherwise.",
            status.store_health.ok());
  out.Gauge("routing_replay_memory_budget_bytes",
            "Limit of memory for routing data: --memory-budget minus the cache of RocksDB.",
            status.memory_budget_bytes);
  out.Gauge("routing_replay_memory_used_bytes",
            "Bytes of routing_replay_memory_budget_bytes in use, including bytes promised as credit.",
            status.memory_used_bytes);
  if (status.totals) {
    out.Gauge("routing_replay_runs", "Runs in the store.", status.totals->runs);
    out.Gauge("routing_replay_samples", "Samples in the store.", status.totals->samples);
    out.Gauge("routing_replay_stored_bytes", "Bytes that committed rows take in the store.",
              status.totals->stored_bytes);
  }
  for (const auto& [operation, version] :
       {std::pair("put", status.versions.newest_put), std::pair("get", status.versions.newest_get)}) {
    out.Gauge("routing_replay_newest_weight_version",
              "Highest weight version put (operation=put) or read (operation=get) since the start; -1: none.", version,
              {{"operation", operation}});
  }
  out.Gauge("routing_replay_weight_version_lag",
            "Newest weight version put minus the version read last; largest of the runs read in the last 30 minutes.",
            status.versions.lag);
  if (status.totals && status.totals->spill) {
    const auto& spill = status.totals->spill;
    out.Gauge("routing_replay_spill_budget_bytes", "Limit of the files in the spill directory.", spill->budget_bytes);
    out.Gauge("routing_replay_spill_used_bytes", "Size of the files in the spill directory.", spill->disk_bytes);
    for (const auto& [name, value] : SpillCounters(*spill)) {
      out.Counter(name, "Total of the spill directory since the start; deploy/OPERATING.md explains each.", value);
    }
  }
}

using nlohmann::ordered_json;

ordered_json RunsOf(const std::vector<RunState>& runs) {
  ordered_json all = ordered_json::array();
  for (const RunState& run : runs) {
    all.push_back({{"run", run.info.run},
                   {"samples", run.samples},
                   {"sealed_samples", run.sealed_samples},
                   {"committed_rows", run.committed_rows},
                   {"stored_bytes", run.stored_bytes}});
  }
  return all;
}

ordered_json TroublesOf(const std::vector<CallTrouble>& troubles) {
  ordered_json all = ordered_json::array();
  for (const CallTrouble& trouble : troubles) {
    all.push_back({{"last", Timestamp(trouble.last)},
                   {"method", trouble.method},
                   {"code", trouble.code},
                   {"reason", trouble.reason},
                   {"field", trouble.field},
                   {"failed", trouble.failed},
                   {"count", trouble.count}});
  }
  return all;
}

using kainjow::mustache::data;
using kainjow::mustache::list;
using kainjow::mustache::object;
using std::chrono::milliseconds;

std::string VersionText(int64_t version) { return version == kUnknownWeightVersion ? "unknown" : HumanCount(version); }

std::string TextOf(absl::string_view metric, double value) {
  if (absl::StrContains(metric, "_bytes")) return HumanBytes(value);
  const auto count = static_cast<int64_t>(value);
  return absl::StrContains(metric, "_weight_version") ? VersionText(count) : HumanCount(count);
}

// A figure of the page: text for people, and the raw value of its metric.
data FigureOf(const std::string& label, const std::string& metric, double value) {
  return object{
      {"label", label}, {"metric", metric}, {"text", TextOf(metric, value)}, {"value", absl::StrFormat("%.0f", value)}};
}

constexpr std::pair<const char*, const char*> kTiles[] = {
    {"runs", "routing_replay_runs"},
    {"samples", "routing_replay_samples"},
    {"stored", "routing_replay_stored_bytes"},
    {"process memory", "process_resident_memory_bytes"},
    {"newest weights in", R"(routing_replay_newest_weight_version{operation="put"})"},
    {"newest weights out", R"(routing_replay_newest_weight_version{operation="get"})"}};

list Tiles(const Series& figures) {
  list tiles;
  for (const auto& [label, metric] : kTiles) {
    if (const auto found = figures.find(metric); found != figures.end()) {
      tiles.push_back(FigureOf(label, metric, found->second));
    }
  }
  return tiles;
}

struct Filling {
  const char *label, *used, *budget;
};
constexpr Filling kBars[] = {
    {"Memory budget", "routing_replay_memory_used_bytes", "routing_replay_memory_budget_bytes"},
    {"Spill directory", "routing_replay_spill_used_bytes", "routing_replay_spill_budget_bytes"}};

list Bars(const Series& figures) {
  list bars;
  for (const auto& [label, used, budget] : kBars) {
    if (!figures.contains(used)) continue;
    const double limit = figures.at(budget);
    const double percent = limit > 0 ? 100 * figures.at(used) / limit : 0;
    data bar = FigureOf(label, used, figures.at(used));
    bar.set("budget", HumanBytes(limit));
    bar.set("percent", absl::StrFormat("%.1f", std::clamp(percent, 0.0, 100.0)));
    bar.set("percent_text", absl::StrFormat("%.*f %%", percent > 0 && percent < 10 ? 1 : 0, percent));
    bar.set("tight", percent > 85);
    bars.push_back(bar);
  }
  return bars;
}

// The runs with the most bytes, the largest first.
void AddRuns(std::vector<RunState> runs, data& page) {
  std::sort(runs.begin(), runs.end(),
            [](const RunState& a, const RunState& b) { return a.stored_bytes > b.stored_bytes; });
  const size_t shown = std::min(runs.size(), kMostRuns);
  list rows;
  for (size_t i = 0; i < shown; ++i) {
    const RunState& run = runs[i];
    const auto most_bytes = static_cast<double>(std::max<int64_t>(1, runs[0].stored_bytes));
    const auto bytes = static_cast<double>(run.stored_bytes);
    rows.push_back(object{{"run", run.info.run},
                          {"samples", HumanCount(run.samples)},
                          {"sealed", HumanCount(run.sealed_samples)},
                          {"rows", HumanCount(run.committed_rows)},
                          {"bytes", HumanBytes(bytes)},
                          {"percent", absl::StrFormat("%.1f", 100 * bytes / most_bytes)}});
  }
  page.set("any_runs", shown > 0);
  page.set("runs", rows);
  page.set("more_runs",
           runs.size() > shown ? data(Counted(static_cast<int64_t>(runs.size() - shown), "run")) : data(false));
}

// The counters that indicate trouble.
constexpr const char* kRejections[] = {"append_rejections",  "credit_rejections", "read_samples",
                                       "access_rejections",  "quota_rejections",  "store_errors",
                                       "tls_reload_failures"};

// The rows of the table of rejections: the `counters` of kRejections that are not 0, the largest first.
list Rejections(const Series& counters) {
  std::multimap<double, data, std::greater<>> found;
  for (const auto& [name, value] : counters) {
    for (const char* kind : kRejections) {
      absl::string_view label = name;
      if (value == 0 || !absl::ConsumePrefix(&label, absl::StrCat("routing_replay_", kind, "_total"))) continue;
      const std::vector<absl::string_view> quoted = absl::StrSplit(label, absl::MaxSplits('"', 2));
      if (quoted.size() > 1 && quoted[1] == "OK") continue;
      data row = FigureOf(absl::StrReplaceAll(kind, {{"_", " "}}), name, value);
      row.set("reason", std::string(quoted.size() > 1 ? quoted[1] : ""));
      found.emplace(value, std::move(row));
    }
  }
  list rows;
  for (auto& [value, row] : found) rows.push_back(std::move(row));
  return rows;
}

// Append and Read calls by transport, for example "shm 12, grpc 3". Empty if there were none.
std::string Streams(const Series& counters) {
  std::multimap<double, std::string, std::greater<>> found;
  for (const auto& [name, value] : counters) {
    absl::string_view label = name;
    if (!absl::ConsumePrefix(&label, "routing_replay_streams_total{transport=\"")) continue;
    found.emplace(value, absl::StrCat(absl::StripSuffix(label, "\"}"), " ", HumanCount(static_cast<int64_t>(value))));
  }
  return absl::StrJoin(found, ", ", [](std::string* out, const auto& one) { out->append(one.second); });
}

list Troubles(const std::vector<CallTrouble>& troubles, std::chrono::system_clock::time_point now) {
  list rows;
  for (const CallTrouble& trouble : troubles) {
    rows.push_back(object{{"ago", HumanDuration(std::chrono::duration_cast<milliseconds>(now - trouble.last))},
                          {"time", Timestamp(trouble.last)},
                          {"method", trouble.method},
                          {"code", trouble.code},
                          {"reason", trouble.reason},
                          {"field", trouble.field.empty() ? data(false) : data(trouble.field)},
                          {"count", HumanCount(trouble.count)},
                          {"failed", trouble.failed}});
  }
  return rows;
}

}  // namespace

ProcessUsage LookAtProcess() {
  ProcessUsage usage{.threads = EntriesOf("/proc/self/task"),
                     .open_fds = EntriesOf("/proc/self/fd") - 1};  // Without the descriptor that this function uses.
  int64_t pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident_pages;
  usage.virtual_bytes = pages * sysconf(_SC_PAGESIZE);
  usage.resident_bytes = resident_pages * sysconf(_SC_PAGESIZE);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) usage.max_fds = static_cast<int64_t>(limit.rlim_cur);
  return usage;
}

std::vector<MetricFamily> FiguresOf(const ServerStatus& status, bool serving) {
  Families families;
  AddProcess(status, families);
  if (serving) AddStore(status, families);
  return families.Take();
}

std::string StatusJson(const ServerStatus& status, const std::optional<std::vector<RunState>>& runs,
                       const Series& counters, const std::vector<CallTrouble>& troubles) {
  ordered_json json = {{"version", status.version},
                       {"store", status.store},
                       {"listeners", status.listeners},
                       {"started", Timestamp(status.started)},
                       {"ready", status.ready.ok()},
                       {"not_ready_because", std::string(status.ready.message())},
                       {"store_trouble", std::string(status.store_health.message())},
                       {"figures", SeriesOf(FiguresOf(status))},
                       {"counters", counters},
                       {"troubles", TroublesOf(troubles)}};
  if (runs) json["runs"] = RunsOf(*runs);
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string StatusPage(const StatusPageInput& input) {
  const ServerStatus& status = input.status;
  data page;
  page.set("version", status.version);
  page.set("store", status.store);
  page.set("now", Timestamp(input.now));
  page.set("started", Timestamp(status.started));
  page.set("uptime", HumanDuration(std::chrono::duration_cast<milliseconds>(status.uptime)));
  page.set("ready", status.ready.ok());
  page.set("not_ready", std::string(status.ready.message()));
  page.set("healthy", status.store_health.ok());
  page.set("trouble", std::string(status.store_health.message()));
  page.set("listeners", absl::StrJoin(status.listeners, ", "));
  if (const std::string streams = Streams(input.counters); !streams.empty()) page.set("streams", streams);
  if (status.certificate_expiry) page.set("certificate", Timestamp(*status.certificate_expiry));
  const Series figures = SeriesOf(FiguresOf(status));
  page.set("tiles", Tiles(figures));
  page.set("bars", Bars(figures));
  AddRuns(input.runs, page);
  const list rejections = Rejections(input.counters), troubles = Troubles(input.troubles, input.now);
  page.set("any_rejections", !rejections.empty());
  page.set("rejections", rejections);
  page.set("any_troubles", !troubles.empty());
  page.set("troubles", troubles);
  page.set("settings", input.settings);
  return kainjow::mustache::mustache(kStatusPageTemplate).render(page);
}

}  // namespace routing_replay::server
