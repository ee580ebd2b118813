#include "server/operations/status_page.h"

#include <algorithm>
#include <functional>
#include <kainjow/mustache.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "proto/wire/human.h"
#include "server/operations/status_formats.h"

namespace routing_replay::server {

namespace {

using kainjow::mustache::data;
using kainjow::mustache::list;
using std::chrono::milliseconds;

// Figures of the process have names that others' have, too.
constexpr char kPrefix[] = "routing_replay_", kOfTheProcess[] = "process_";

// A figure that is also a metric: what people read, and the number that /metrics has.
data Figure(const std::string& label, const std::string& metric, const std::string& text, double value) {
  data figure;
  figure.set("label", label);
  figure.set("metric", (absl::StartsWith(metric, kOfTheProcess) ? "" : kPrefix) + metric);
  figure.set("text", text);
  figure.set("value", absl::StrFormat("%.0f", value));
  return figure;
}

data Count(const std::string& label, const std::string& metric, int64_t value) {
  return Figure(label, metric, HumanCount(value), static_cast<double>(value));
}
data Bytes(const std::string& label, const std::string& metric, int64_t value) {
  return Figure(label, metric, HumanBytes(static_cast<double>(value)), static_cast<double>(value));
}

std::string Version(int64_t version) { return version == kUnknownWeightVersion ? "unknown" : HumanCount(version); }

data Newest(const std::string& label, absl::string_view operation, int64_t version) {
  return Figure(label, absl::StrCat("newest_weight_version{operation=\"", operation, "\"}"), Version(version),
                static_cast<double>(version));
}

list Tiles(const ServerStatus& status) {
  list tiles;
  tiles.push_back(Count("runs", "runs", status.totals.runs));
  tiles.push_back(Count("samples", "samples", status.totals.samples));
  tiles.push_back(Bytes("stored", "stored_bytes", status.totals.stored_bytes));
  tiles.push_back(Bytes("process memory", "process_resident_memory_bytes", status.resident_bytes));
  tiles.push_back(Newest("newest weights in", "put", status.newest_put));
  tiles.push_back(Newest("newest weights out", "get", status.newest_get));
  if (status.census != nullptr && status.census->oldest_idle_ms >= 0) {
    const milliseconds idle(status.census->oldest_idle_ms);
    tiles.push_back(Figure("longest time unused", "oldest_sample_idle_seconds", HumanDuration(idle),
                           static_cast<double>(idle.count()) / 1000));
  }
  return tiles;
}

data Bar(const std::string& label, const std::string& metric, int64_t used, int64_t budget) {
  const double percent = budget > 0 ? 100.0 * static_cast<double>(used) / static_cast<double>(budget) : 0;
  data bar = Bytes(label, metric, used);
  bar.set("budget", HumanBytes(static_cast<double>(budget)));
  bar.set("percent", absl::StrFormat("%.1f", std::clamp(percent, 0.0, 100.0)));
  bar.set("percent_text", absl::StrFormat("%.*f %%", percent > 0 && percent < 10 ? 1 : 0, percent));
  bar.set("tight", percent > 85);
  return bar;
}

list Bars(const ServerStatus& status) {
  list bars;
  bars.push_back(Bar("Memory budget", "memory_used_bytes", status.memory_used_bytes, status.memory_budget_bytes));
  if (const auto& spill = status.totals.spill) {
    bars.push_back(Bar("Spill directory", "spill_used_bytes", spill->disk_bytes, spill->budget_bytes));
  }
  return bars;
}

// The rows of one weight version of one run.
struct Share {
  const Census::Run* run;
  int64_t version;
  Census::Share share;
};

// The kMostShares with the most bytes, those of a run together: runs by name, the newest version first. `left_out`: how
// many there are beside them.
std::vector<Share> LargestShares(const Census& census, size_t& left_out) {
  std::vector<Share> shares;
  for (const Census::Run& run : census.runs) {
    for (auto it = run.by_version.rbegin(); it != run.by_version.rend(); ++it) {
      shares.push_back({&run, it->first, it->second});
    }
  }
  std::vector<int64_t> bytes;
  for (const Share& one : shares) bytes.push_back(one.share.bytes);
  left_out = 0;
  if (bytes.size() <= kMostShares) return shares;
  std::nth_element(bytes.begin(), bytes.begin() + kMostShares - 1, bytes.end(), std::greater<>());
  std::vector<Share> largest;
  for (const Share& one : shares) {
    if (one.share.bytes >= bytes[kMostShares - 1] && largest.size() < kMostShares) largest.push_back(one);
  }
  left_out = shares.size() - largest.size();
  return largest;
}

data ShareRow(const Share& one, int64_t most_bytes) {
  data row;
  row.set("version", Version(one.version));
  row.set("samples", HumanCount(one.share.samples));
  row.set("rows", HumanCount(one.share.rows));
  row.set("bytes", HumanBytes(static_cast<double>(one.share.bytes)));
  const double part = static_cast<double>(one.share.bytes) / static_cast<double>(std::max<int64_t>(1, most_bytes));
  row.set("percent", absl::StrFormat("%.1f", 100 * part));
  return row;
}

list RunGroups(const std::vector<Share>& shares) {
  int64_t most_bytes = 0;
  for (const Share& one : shares) most_bytes = std::max(most_bytes, one.share.bytes);
  list groups;
  for (size_t i = 0; i < shares.size();) {
    const Census::Run& run = *shares[i].run;
    list rows;
    for (; i < shares.size() && shares[i].run == &run; ++i) rows.push_back(ShareRow(shares[i], most_bytes));
    data group;
    group.set("run", run.run);
    group.set("summary", absl::StrCat(Counted(run.samples, "sample"), ", ", HumanCount(run.sealed_samples), " sealed, ",
                                      HumanBytes(static_cast<double>(run.stored_bytes))));
    group.set("versions", rows);
    groups.push_back(group);
  }
  return groups;
}

void AddShares(const Census& census, data& page) {
  size_t left_out = 0;
  const list groups = RunGroups(LargestShares(census, left_out));
  page.set("any_shares", !groups.empty());
  page.set("groups", groups);
  page.set("more_shares", left_out > 0 ? data(Counted(static_cast<int64_t>(left_out), "row", "rows")) : data(false));
  page.set("partial", census.looked_at < census.samples);
  page.set("looked_at", HumanCount(census.looked_at));
  page.set("of_samples", HumanCount(census.samples));
}

// What the counters that tell of trouble are called on the page. Each has one label, or none.
struct RefusalKind {
  const char* metric;
  const char* text;
};
constexpr RefusalKind kRefusals[] = {{"append_refusals_total", "append refused"},
                                     {"credit_refusals_total", "credit refused"},
                                     {"read_samples_total", "sample not read"},
                                     {"access_refusals_total", "access refused"},
                                     {"quota_refusals_total", "quota reached"},
                                     {"store_errors_total", "store error"},
                                     {"tls_reload_failures_total", "TLS files not accepted"}};

// "x" of "{reason="x"}".
std::string LabelValue(absl::string_view labels) {
  const size_t begin = labels.find('"'), end = labels.rfind('"');
  return begin == labels.npos || end <= begin ? "" : std::string(labels.substr(begin + 1, end - begin - 1));
}

list Refusals(const std::vector<std::pair<std::string, int64_t>>& counters) {
  std::vector<std::pair<int64_t, data>> found;
  for (const auto& [name, value] : counters) {
    for (const RefusalKind& kind : kRefusals) {
      absl::string_view labels = name;
      if (value == 0 || !absl::ConsumePrefix(&labels, absl::StrCat(kPrefix, kind.metric))) continue;
      const std::string label = LabelValue(labels);
      if (label == "OK") continue;
      data row = Count(kind.text, "", value);
      row.set("metric", name);
      row.set("reason", label);
      found.emplace_back(value, std::move(row));
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  list rows;
  for (auto& [value, row] : found) rows.push_back(std::move(row));
  return rows;
}

list Troubles(const std::vector<CallTrouble>& troubles, std::chrono::system_clock::time_point now) {
  list rows;
  for (const CallTrouble& trouble : troubles) {
    data row;
    row.set("ago", HumanDuration(std::chrono::duration_cast<milliseconds>(now - trouble.last)));
    row.set("time", FormatUtc(trouble.last));
    row.set("method", trouble.method);
    row.set("code", trouble.code);
    row.set("reason", trouble.reason);
    row.set("field", trouble.field.empty() ? data(false) : data(trouble.field));
    row.set("count", HumanCount(trouble.count));
    row.set("failed", trouble.failed);
    rows.push_back(row);
  }
  return rows;
}

list Texts(const std::vector<std::string>& texts) {
  list all;
  for (const std::string& text : texts) all.push_back(data("text", text));
  return all;
}

}  // namespace

std::string StatusPage(const StatusPageInput& input) {
  const ServerStatus& status = input.status;
  data page;
  page.set("version", status.version);
  page.set("store", status.store);
  page.set("now", FormatUtc(input.now));
  page.set("started", FormatUtc(status.started));
  page.set("uptime", HumanDuration(std::chrono::duration_cast<milliseconds>(status.uptime)));
  page.set("ready", status.ready.ok());
  page.set("not_ready", std::string(status.ready.message()));
  page.set("healthy", status.store_health.ok());
  page.set("trouble", std::string(status.store_health.message()));
  page.set("refreshing", input.refreshing);
  page.set("listeners", Texts(status.listeners));
  if (status.certificate_expiry) {
    data certificate;
    certificate.set("time", FormatUtc(*status.certificate_expiry));
    page.set("certificate", certificate);
  }
  page.set("tiles", Tiles(status));
  page.set("bars", Bars(status));
  AddShares(status.census == nullptr ? Census() : *status.census, page);
  const list refusals = Refusals(input.counters), troubles = Troubles(input.troubles, input.now);
  page.set("any_refusals", !refusals.empty());
  page.set("refusals", refusals);
  page.set("any_troubles", !troubles.empty());
  page.set("troubles", troubles);
  page.set("settings", input.settings);
  return kainjow::mustache::mustache(kStatusPageTemplate).render(page);
}

}  // namespace routing_replay::server
