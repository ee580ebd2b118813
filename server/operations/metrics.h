// Counters of the server's work, in Prometheus form. Every fallback and every rejection has a counter.
#ifndef SERVER_OPERATIONS_METRICS_H_
#define SERVER_OPERATIONS_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "proto/wire/message/append_message.h"
#include "proto/wire/message/read_message.h"
#include "proto/wire/mutex.h"

namespace routing_replay::server {

// True if a call that ends with `status` failed because of the server, not because of its caller.
bool IsServersFault(const absl::Status& status);

// Values of counters and gauges by name, with labels in braces.
using Series = std::map<std::string, double>;
Series SeriesOf(const std::vector<prometheus::MetricFamily>& families);

// Thread-safe; all counters are monotonic since start.
class Metrics {
 public:
  // `clock` must outlive it.
  explicit Metrics(const Clock& clock = Clock::Real()) : clock_(clock) {}

  struct CountedAppend {
    Producer producer;
    int64_t weight_version;
    int64_t rows;
    int64_t payload_bytes;
  };
  // Counts an append of `run`, accepted or rejected as `ack` says.
  void CountAppend(absl::string_view run, const CountedAppend& append, const AppendAck& ack);
  void CountRecord(absl::string_view run, Producer producer, const SampleRecord& record);
  void CountAccessRejection(const absl::Status& status);
  // A call or an append ended with `status`. Counts only errors of the store itself.
  void CountStoreError(const absl::Status& status);
  // Counts an Append or Read call that was admitted. `transport`: see Caller::transport.
  void CountStream(const char* transport);
  // Counts a change of the token file. `taken`: the new tokens are in use; otherwise the previous ones stay valid.
  void CountTokenFileReload(bool taken);
  // Counts a rejection by a limit. `quota`: "run_bytes", "max_deadline", "waiting_reads" or "control_calls".
  void CountQuotaRejection(const char* quota);

  // Call BeginCall when a call of the method has arrived, and EndCall when it has ended.
  void BeginCall(absl::string_view method);
  void EndCall(absl::string_view method, absl::StatusCode code, std::chrono::duration<double> took);
  // Calls that have begun and not ended.
  int calls_in_flight() const { return calls_in_flight_.load(std::memory_order_relaxed); }

  // Call it when the run was dropped or went back to a checkpoint. Forgets the weight versions seen under its name.
  void ForgetVersions(absl::string_view run);
  // Weight versions since the start; kUnknownWeightVersion: none.
  struct Versions {
    int64_t newest_put = kUnknownWeightVersion, newest_get = kUnknownWeightVersion;  // Over all runs.
    // The largest lag of all runs that were read in the last 30 minutes; 0 if there are none. A run's lag is the newest
    // version that was put minus the version of the last sample read. Rows recorded by trainers do not count: their
    // versions are numbered differently.
    int64_t lag = 0;
  };
  Versions versions();

  Series Counters() const;
  prometheus::Registry& registry() { return registry_; }

 private:
  using Counter = prometheus::Counter;
  using Gauge = prometheus::Gauge;
  // `name`: without the prefix "routing_replay_".
  template <typename T>
  prometheus::Family<T>& AddFamily(prometheus::detail::Builder<T> builder, const char* name, const char* help) {
    return builder.Name(absl::StrCat("routing_replay_", name)).Help(help).Register(registry_);
  }
  prometheus::Family<Counter>& AddCounters(const char* name, const char* help) {
    return AddFamily(prometheus::BuildCounter(), name, help);
  }
  Counter& AddCounter(const char* name, const char* help) { return AddCounters(name, help).Add({}); }
  Gauge& AddGauge(const char* name, const char* help) {
    return AddFamily(prometheus::BuildGauge(), name, help).Add({});
  }
  struct RunVersions {
    int64_t put = kUnknownWeightVersion, get = kUnknownWeightVersion;
    Clock::Time read, used;
  };
  // Returns the run's entry, which is created if there is none, and sets its time of use to now.
  RunVersions& Use(absl::string_view run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  mutable Mutex mutex_;
  Versions newest_ ABSL_GUARDED_BY(mutex_);  // Its lag is not set; versions() computes it.
  std::map<std::string, RunVersions, std::less<>> runs_ ABSL_GUARDED_BY(mutex_);
  prometheus::Registry registry_;

  prometheus::Family<Counter>& append_rejections_ =
      AddCounters("append_rejections_total", "Appends rejected, by reason. Nothing of a rejected append is stored.");
  prometheus::Family<Counter>& records_ = AddCounters("read_samples_total", "Samples answered by reads, by status.");
  prometheus::Family<Counter>& access_rejections_ =
      AddCounters("access_rejections_total", "Calls and messages rejected because of their token, by status code.");
  prometheus::Family<Counter>& store_errors_ =
      AddCounters("store_errors_total",
                  "Operations of the store that failed for reasons other than the caller's request, by status code.");
  prometheus::Family<Counter>& quota_rejections_ =
      AddCounters("quota_rejections_total",
                  "Calls and messages rejected or ended because a limit was reached, by the limit (quota).");
  prometheus::Family<Counter>& streams_ = AddCounters(
      "streams_total",
      "Append and Read calls admitted, by transport: grpc, direct (TCP), unix (socket) or shm (shared memory).");
  prometheus::Family<Counter>& calls_ = AddCounters("rpcs_total", "Calls that ended, by method and status code.");
  prometheus::Family<Gauge>& open_calls_ = AddFamily(prometheus::BuildGauge(), "rpcs_in_flight", "Calls in progress.");
  prometheus::Family<prometheus::Histogram>& call_seconds_ =
      AddFamily(prometheus::BuildHistogram(), "rpc_duration_seconds",
                "Duration of a call from its arrival to its end; for Append and Read, of the whole stream.");
  std::atomic<int> calls_in_flight_{0};
  prometheus::Histogram& append_sizes_ =
      AddFamily(prometheus::BuildHistogram(), "append_size_bytes", "Payload bytes of one accepted append.")
          .Add({}, prometheus::Histogram::BucketBoundaries{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20,
                                                           16 << 20, 64 << 20});
  Counter& appends_ = AddCounter("appends_total", "Appends accepted.");
  Counter& rows_ = AddCounter("append_rows_total", "Rows of accepted appends.");
  Counter& ingest_bytes_ = AddCounter("ingest_bytes_total", "Payload bytes of accepted appends.");
  Counter& trimmed_rows_ = AddCounter(
      "trimmed_rows_total", "Rows sent again although they were already committed; they were not stored again.");
  Counter& conflicting_rows_ =
      AddCounter("conflicting_rows_total",
                 "Trimmed rows whose expert ids differ from the stored ones; the stored ones were kept.");
  Counter& late_rows_ =
      AddCounter("late_rows_total", "Rows that arrived after they had been declared unrecorded; they were not stored.");
  Counter& unrecorded_rows_ = AddCounter("unrecorded_rows_total", "Rows committed as unrecorded, without expert ids.");
  Counter& unverified_rows_ = AddCounter(
      "unverified_rows_total", "Trimmed rows whose tokens could not be compared, because one side did not state them.");
  Gauge& token_file_rejected_ =
      AddGauge("token_file_rejected", "1 while the token file is invalid and the previous tokens stay in force.");
  Counter& token_file_failures_ =
      AddCounter("token_file_reload_failures_total",
                 "Changes of the token file that were rejected; the previous tokens stayed in force.");

 public:  // Counters that are updated where the event happens.
  Counter& credits = AddCounter("credits_total", "Credit requests granted.");
  Counter& credit_rejections =
      AddCounter("credit_rejections_total",
                 "Credit requests rejected because of the memory budget, a run's limit or the stream's window.");
  Gauge& credit_bytes =
      AddGauge("memory_credit_bytes", "Bytes of the memory budget promised to append streams and not received yet.");
  Counter& reads = AddCounter("reads_total", "Reads begun.");
  Gauge& waiting_read_bytes = AddGauge("waiting_read_bytes", "Memory held by the requests of waiting reads.");
  Counter& egress_bytes = AddCounter("egress_bytes_total", "Payload bytes of read messages.");
  Counter& egress_table_bytes =
      AddCounter("egress_table_bytes_total", "Bytes of read messages besides the payload: tables and records.");
  Counter& expired = AddCounter("expired_samples_total",
                                "Samples removed because they were idle for longer than the TTL of their run.");
  Counter& tls_reload_failures = AddCounter(
      "tls_reload_failures_total",
      "Checks of the TLS files that found them missing, incomplete or mismatched; the previous ones stayed in use.");
  Gauge& connections = AddGauge("connections", "Open connections.");
  Counter& rejected_connections = AddCounter(
      "connections_rejected_total",
      "Connections closed at once: a limit (of all, or per address) was reached, or the address is slowed down.");
  Counter& cut_connections =
      AddCounter("connections_cut_total", "Connections cut because they began and cancelled too many calls.");
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_METRICS_H_
