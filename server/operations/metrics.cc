#include "server/operations/metrics.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

// Returns the labels as text, such as {a="x",b="y"}, or "" if there are none. Values are fixed words, so nothing needs
// to be escaped.
std::string LabelText(const std::vector<prometheus::ClientMetric::Label>& labels) {
  if (labels.empty()) return "";
  return absl::StrCat("{",
                      absl::StrJoin(labels, ",",
                                    [](std::string* out, const auto& label) {
                                      absl::StrAppend(out, label.name, "=\"", label.value, "\"");
                                    }),
                      "}");
}

// Bucket limits, up to the 10 minutes that a read may wait (ServerConfig::max_wait).
const prometheus::Histogram::BucketBoundaries kSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                          1,     2.5,    5,     10,   30,    60,   120, 300,  600};

}  // namespace

bool IsServersFault(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return GetErrorDetail(status).value_or(ErrorDetail()).reason != Reason::kDraining;
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
      return true;
    default:
      return false;
  }
}

Series SeriesOf(const std::vector<prometheus::MetricFamily>& families) {
  Series series;
  for (const prometheus::MetricFamily& family : families) {
    const bool counts = family.type == prometheus::MetricType::Counter;
    if (!counts && family.type != prometheus::MetricType::Gauge) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      series[absl::StrCat(family.name, LabelText(metric.label))] = counts ? metric.counter.value : metric.gauge.value;
    }
  }
  return series;
}

void Metrics::CountAppend(absl::string_view run, const CountedAppend& append, const AppendAck& ack) {
  if (!ack.error.ok()) {
    const Reason reason = GetErrorDetail(ack.error).value_or(ErrorDetail()).reason;
    return append_rejections_.Add({{"reason", ReasonName(reason)}}).Increment();
  }
  const auto [producer, version, rows, payload_bytes] = append;
  appends_.Increment();
  rows_.Increment(static_cast<double>(rows));
  ingest_bytes_.Increment(static_cast<double>(payload_bytes));
  append_sizes_.Observe(static_cast<double>(payload_bytes));
  trimmed_rows_.Increment(static_cast<double>(ack.trimmed_rows));
  conflicting_rows_.Increment(static_cast<double>(ack.conflicting_rows));
  late_rows_.Increment(static_cast<double>(ack.late_rows));
  unrecorded_rows_.Increment(static_cast<double>(ack.unrecorded_rows));
  unverified_rows_.Increment(static_cast<double>(ack.unverified_rows));
  if (version == kUnknownWeightVersion) return;
  MutexLock lock(mutex_);
  newest_.newest_put = std::max(newest_.newest_put, version);
  if (producer != Producer::kRollout) return;
  RunVersions& versions = Use(run);
  versions.put = std::max(versions.put, version);
}

void Metrics::CountRecord(absl::string_view run, Producer producer, const SampleRecord& record) {
  records_.Add({{"status", SampleStatusName(record.status)}}).Increment();
  int64_t version = kUnknownWeightVersion;
  for (const WeightSpan& span : record.weights) version = std::max(version, span.version);
  if (version == kUnknownWeightVersion) return;
  MutexLock lock(mutex_);
  newest_.newest_get = std::max(newest_.newest_get, version);
  if (producer != Producer::kRollout) return;
  RunVersions& versions = Use(run);
  // Takes the version of the last read, even if an earlier read had a higher one. With the highest one, a single reader
  // of the whole run, such as an export, would hide the trainer's lag forever.
  versions.get = version;
  versions.read = versions.used;
}

Metrics::RunVersions& Metrics::Use(absl::string_view run) {
  auto found = runs_.find(run);
  if (found == runs_.end()) found = runs_.emplace(run, RunVersions()).first;
  found->second.used = clock_.Now();
  return found->second;
}

void Metrics::ForgetVersions(absl::string_view run) {
  MutexLock lock(mutex_);
  if (const auto found = runs_.find(run); found != runs_.end()) runs_.erase(found);
}

Metrics::Versions Metrics::versions() {
  constexpr std::chrono::minutes kReaderIsGone(30);
  const Clock::Time now = clock_.Now();
  MutexLock lock(mutex_);
  std::erase_if(runs_, [&](const auto& entry) { return now - entry.second.used >= kReaderIsGone; });
  Versions all = newest_;
  for (const auto& [name, run] : runs_) {
    const bool read = run.get != kUnknownWeightVersion && now - run.read < kReaderIsGone;
    if (read && run.put != kUnknownWeightVersion) all.lag = std::max(all.lag, run.put - run.get);
  }
  return all;
}

void Metrics::CountAccessRejection(const absl::Status& status) {
  access_rejections_.Add({{"reason", absl::AsciiStrToLower(absl::StatusCodeToString(status.code()))}}).Increment();
}

void Metrics::CountStoreError(const absl::Status& status) {
  if (IsServersFault(status)) store_errors_.Add({{"code", absl::StatusCodeToString(status.code())}}).Increment();
}

void Metrics::CountQuotaRejection(const char* quota) { quota_rejections_.Add({{"quota", quota}}).Increment(); }

void Metrics::CountStream(const char* transport) { streams_.Add({{"transport", transport}}).Increment(); }

void Metrics::CountTokenFileReload(bool taken) {
  token_file_rejected_.Set(taken ? 0 : 1);
  if (!taken) token_file_failures_.Increment();
}

void Metrics::BeginCall(absl::string_view method) {
  ++calls_in_flight_;
  open_calls_.Add({{"method", std::string(method)}}).Increment();
}

void Metrics::EndCall(absl::string_view method, absl::StatusCode code, std::chrono::duration<double> took) {
  const prometheus::Labels labels = {{"method", std::string(method)}};
  --calls_in_flight_;
  open_calls_.Add(labels).Decrement();
  call_seconds_.Add(labels, kSeconds).Observe(took.count());
  calls_.Add({{"method", std::string(method)}, {"code", absl::StatusCodeToString(code)}}).Increment();
}

Series Metrics::Counters() const {
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  std::erase_if(families, [](const auto& family) { return family.type != prometheus::MetricType::Counter; });
  return SeriesOf(families);
}

}  // namespace routing_replay::server
