#include "server/operations/metrics.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

// {a="x",b="y"}; nothing where there are none. Values are words of this program: nothing in them needs an escape.
std::string LabelText(const std::vector<prometheus::ClientMetric::Label>& labels) {
  if (labels.empty()) return "";
  return absl::StrCat("{",
                      absl::StrJoin(labels, ",",
                                    [](std::string* out, const auto& label) {
                                      absl::StrAppend(out, label.name, "=\"", label.value, "\"");
                                    }),
                      "}");
}

}  // namespace

Metrics::Metrics()
    : refusals_(prometheus::BuildCounter()
                    .Name("routing_replay_append_refusals_total")
                    .Help("Appends refused, by reason; nothing of them was stored.")
                    .Register(registry_)),
      records_(prometheus::BuildCounter()
                   .Name("routing_replay_read_samples_total")
                   .Help("Samples answered by reads, by status.")
                   .Register(registry_)),
      access_refusals_(prometheus::BuildCounter()
                           .Name("routing_replay_access_refusals_total")
                           .Help("Calls and messages refused for their token, by what the answer was.")
                           .Register(registry_)),
      store_errors_(prometheus::BuildCounter()
                        .Name("routing_replay_store_errors_total")
                        .Help("Operations of the store that failed for no fault of who asked, by status code.")
                        .Register(registry_)),
      quota_refusals_(
          prometheus::BuildCounter()
              .Name("routing_replay_quota_refusals_total")
              .Help("Calls and messages refused or ended for a limit of one run, one call or one kind of calls.")
              .Register(registry_)),
      append_sizes_(prometheus::BuildHistogram()
                        .Name("routing_replay_append_size_bytes")
                        .Help("Payload bytes of one accepted append.")
                        .Register(registry_)
                        .Add({}, prometheus::Histogram::BucketBoundaries{4 << 10, 16 << 10, 64 << 10, 256 << 10,
                                                                         1 << 20, 4 << 20, 16 << 20, 64 << 20})),
      credit_bytes_(prometheus::BuildGauge()
                        .Name("routing_replay_memory_credit_bytes")
                        .Help("Bytes of the memory budget promised to append streams that have not come yet.")
                        .Register(registry_)
                        .Add({})),
      waiting_read_bytes_(prometheus::BuildGauge()
                              .Name("routing_replay_waiting_read_bytes")
                              .Help("Memory that the requests of reads take which wait.")
                              .Register(registry_)
                              .Add({})),
      token_file_rejected_(prometheus::BuildGauge()
                               .Name("routing_replay_token_file_rejected")
                               .Help("1 while the token file is one that is not taken: older tokens are in force.")
                               .Register(registry_)
                               .Add({})),
      connections_(prometheus::BuildGauge()
                       .Name("routing_replay_connections")
                       .Help("Connections of gRPC that are open.")
                       .Register(registry_)
                       .Add({})),
      appends_(Add("routing_replay_appends_total", "Appends accepted.")),
      rows_(Add("routing_replay_append_rows_total", "Rows of accepted appends.")),
      ingest_bytes_(Add("routing_replay_ingest_bytes_total", "Payload bytes of accepted appends.")),
      trimmed_rows_(Add("routing_replay_trimmed_rows_total", "Rows sent again that were already committed.")),
      conflicting_rows_(
          Add("routing_replay_conflicting_rows_total", "Trimmed rows with other routes than the stored.")),
      late_rows_(Add("routing_replay_late_rows_total", "Rows that came after they were declared unrecorded.")),
      unrecorded_rows_(Add("routing_replay_unrecorded_rows_total", "Rows committed without a route.")),
      unverified_rows_(Add("routing_replay_unverified_rows_total", "Trimmed rows whose tokens could not be compared.")),
      credits_(Add("routing_replay_credits_total", "Credit requests granted.")),
      credit_refusals_(Add("routing_replay_credit_refusals_total", "Credit requests refused: over budget.")),
      reads_(Add("routing_replay_reads_total", "Reads begun.")),
      egress_bytes_(Add("routing_replay_egress_bytes_total", "Payload bytes of read messages.")),
      egress_table_bytes_(Add("routing_replay_egress_table_bytes_total", "Bytes of read messages beside the payload.")),
      expired_(Add("routing_replay_expired_samples_total", "Samples removed because they were idle past their TTL.")),
      tls_reload_failures_(
          Add("routing_replay_tls_reload_failures_total",
              "Looks at the TLS files that found them missing, not whole or not fitting; the old ones stayed.")),
      token_file_failures_(Add("routing_replay_token_file_reload_failures_total",
                               "Changes of the token file that were not taken; the tokens stayed as they were.")),
      refused_connections_(Add("routing_replay_connections_refused_total",
                               "Connections closed at once: more than there may be, in all or of one address.")),
      cut_connections_(
          Add("routing_replay_connections_cut_total", "Connections cut for calls that they began and took back.")) {}

prometheus::Counter& Metrics::Add(const std::string& name, const std::string& help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add({});
}

void Metrics::CountAppend(const AppendAck& ack, int64_t rows, int64_t payload_bytes) {
  if (!ack.error.ok()) return CountRefusal(ack.error);
  appends_.Increment();
  rows_.Increment(static_cast<double>(rows));
  ingest_bytes_.Increment(static_cast<double>(payload_bytes));
  append_sizes_.Observe(static_cast<double>(payload_bytes));
  trimmed_rows_.Increment(static_cast<double>(ack.trimmed_rows));
  conflicting_rows_.Increment(static_cast<double>(ack.conflicting_rows));
  late_rows_.Increment(static_cast<double>(ack.late_rows));
  unrecorded_rows_.Increment(static_cast<double>(ack.unrecorded_rows));
  unverified_rows_.Increment(static_cast<double>(ack.unverified_rows));
}

void Metrics::CountRefusal(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  refusals_.Add({{"reason", ReasonName(detail ? detail->reason : Reason::kUnspecified)}}).Increment();
}

void Metrics::CountCredit(bool granted) { (granted ? credits_ : credit_refusals_).Increment(); }

void Metrics::AddCreditBytes(int64_t bytes) { credit_bytes_.Increment(static_cast<double>(bytes)); }

void Metrics::SetWaitingReadBytes(int64_t bytes) { waiting_read_bytes_.Set(static_cast<double>(bytes)); }

void Metrics::CountRead() { reads_.Increment(); }

void Metrics::CountRecord(SampleStatus status) { records_.Add({{"status", SampleStatusName(status)}}).Increment(); }

void Metrics::CountSent(int64_t table_bytes, int64_t payload_bytes) {
  egress_table_bytes_.Increment(static_cast<double>(table_bytes));
  egress_bytes_.Increment(static_cast<double>(payload_bytes));
}

void Metrics::CountAccessRefusal(const absl::Status& status) {
  access_refusals_.Add({{"reason", absl::AsciiStrToLower(absl::StatusCodeToString(status.code()))}}).Increment();
}

void Metrics::CountStoreError(absl::StatusCode code) {
  store_errors_.Add({{"code", absl::StatusCodeToString(code)}}).Increment();
}

void Metrics::CountQuotaRefusal(const char* quota) { quota_refusals_.Add({{"quota", quota}}).Increment(); }

void Metrics::CountExpired(int64_t samples) { expired_.Increment(static_cast<double>(samples)); }

void Metrics::AddConnections(int64_t connections) { connections_.Increment(static_cast<double>(connections)); }

void Metrics::CountRefusedConnection() { refused_connections_.Increment(); }

void Metrics::CountCutConnection() { cut_connections_.Increment(); }

void Metrics::CountTlsReloadFailure() { tls_reload_failures_.Increment(); }

void Metrics::CountTokenFileReload(bool taken) {
  token_file_rejected_.Set(taken ? 0 : 1);
  if (!taken) token_file_failures_.Increment();
}

std::vector<std::pair<std::string, int64_t>> Metrics::Values() const {
  std::vector<std::pair<std::string, int64_t>> values;
  for (const prometheus::MetricFamily& family : registry_.Collect()) {
    if (family.type != prometheus::MetricType::Counter) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      values.emplace_back(absl::StrCat(family.name, LabelText(metric.label)),
                          static_cast<int64_t>(metric.counter.value));
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace routing_replay::server
