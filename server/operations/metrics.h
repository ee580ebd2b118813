// Counters of what the server carries, in Prometheus form. Every fallback and refusal has one: nothing is silent.
#ifndef SERVER_OPERATIONS_METRICS_H_
#define SERVER_OPERATIONS_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/message/append_message.h"
#include "routing_replay/wire/read_request.h"

namespace routing_replay::server {

// Thread-safe; all counters are monotonic since start.
class Metrics {
 public:
  Metrics();

  void CountAppend(const AppendAck& ack, int64_t rows, int64_t payload_bytes);
  void CountCredit(bool granted);
  // Credit that streams hold grew by so much, or shrank.
  void AddCreditBytes(int64_t bytes);
  // What reads take while they wait.
  void SetWaitingReadBytes(int64_t bytes);
  void CountRead();
  void CountRecord(SampleStatus status);
  void CountSent(int64_t table_bytes, int64_t payload_bytes);
  void CountExpired(int64_t samples);
  void CountAccessRefusal(const absl::Status& status);
  void CountStoreError(absl::StatusCode code);
  // Of gRPC that are open: so many more, or fewer.
  void AddConnections(int64_t connections);
  void CountRefusedConnection();
  void CountCutConnection();
  // TLS files that are not good; those before go on being shown.
  void CountTlsReloadFailure();
  // What became of a change of the token file. One that is rejected leaves the tokens as they were.
  void CountTokenFileReload(bool taken);
  // "run_bytes", "run_streams", "max_deadline", "waiting_reads" or "control_calls".
  void CountQuotaRefusal(const char* quota);

  // Name (labels in braces) and value of every counter, by name.
  std::vector<std::pair<std::string, int64_t>> Values() const;
  prometheus::Registry& registry() { return registry_; }

 private:
  prometheus::Counter& Add(const std::string& name, const std::string& help);
  void CountRefusal(const absl::Status& status);

  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& refusals_;
  prometheus::Family<prometheus::Counter>& records_;
  prometheus::Family<prometheus::Counter>& access_refusals_;
  prometheus::Family<prometheus::Counter>& store_errors_;
  prometheus::Family<prometheus::Counter>& quota_refusals_;
  prometheus::Histogram& append_sizes_;
  prometheus::Gauge &credit_bytes_, &waiting_read_bytes_, &token_file_rejected_, &connections_;
  prometheus::Counter &appends_, &rows_, &ingest_bytes_, &trimmed_rows_, &conflicting_rows_, &late_rows_,
      &unrecorded_rows_, &unverified_rows_, &credits_, &credit_refusals_, &reads_, &egress_bytes_, &egress_table_bytes_,
      &expired_, &tls_reload_failures_, &token_file_failures_, &refused_connections_, &cut_connections_;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_METRICS_H_
