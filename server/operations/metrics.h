// Counters of what the server carries, in Prometheus form. Every fallback and rejection has one: nothing is silent.
#ifndef SERVER_OPERATIONS_METRICS_H_
#define SERVER_OPERATIONS_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/clock.h"
#include "proto/wire/message/append_message.h"
#include "proto/wire/message/read_message.h"
#include "proto/wire/mutex.h"

namespace routing_replay::server {

// Whether a call that ends so is the server's fault, and not its caller's.
bool IsServersFault(const absl::Status& status);

// Thread-safe; all counters are monotonic since start.
class Metrics {
 public:
  // `clock` outlives it.
  explicit Metrics(const Clock& clock = Clock::Real()) : clock_(clock) {}

  // One append of `run`, taken or rejected as `ack` says.
  struct CountedAppend {
    Producer producer;
    int64_t weight_version;
    int64_t rows;
    int64_t payload_bytes;
  };
  void CountAppend(absl::string_view run, const CountedAppend& append, const AppendAck& ack);
  void CountRecord(absl::string_view run, Producer producer, const SampleRecord& record);
  void CountAccessRejection(const absl::Status& status);
  // A call or an append ended so. Counted is what the store is at fault for.
  void CountStoreError(const absl::Status& status);
  // What became of a change of the token file. One that is rejected leaves the tokens as they were.
  void CountTokenFileReload(bool taken);
  // "run_bytes", "run_streams", "max_deadline", "waiting_reads" or "control_calls".
  void CountQuotaRejection(const char* quota);

  // The run is gone, or went back to a checkpoint: the versions of what comes under its name begin again.
  void ForgetVersions(absl::string_view run);
  // Of weight versions since the start; kUnknownWeightVersion: none.
  struct Versions {
    int64_t newest_put = kUnknownWeightVersion, newest_get = kUnknownWeightVersion;  // Of all runs.
    // Of each run with a reader: the newest version that was put minus that of the sample that was read last. The
    // largest of these, 0 where no run was read within 30 minutes. Rows of trainers do not count: their versions are
    // others.
    int64_t lag = 0;
  };
  Versions versions();

  // Name (labels in braces) and value of every counter, by name.
  std::vector<std::pair<std::string, int64_t>> Values() const;
  prometheus::Registry& registry() { return registry_; }

 private:
  using Counter = prometheus::Counter;
  using Gauge = prometheus::Gauge;
  // `name` without its prefix.
  prometheus::Family<Counter>& AddFamily(const char* name, const char* help);
  Counter& AddCounter(const char* name, const char* help) { return AddFamily(name, help).Add({}); }
  Gauge& AddGauge(const char* name, const char* help);
  prometheus::Histogram& AddSizes(const char* name, const char* help);
  struct RunVersions {
    int64_t put = kUnknownWeightVersion, get = kUnknownWeightVersion;
    Clock::Time read, used;
  };
  // The run's entry, used now.
  RunVersions& Use(absl::string_view run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  mutable Mutex mutex_;
  Versions newest_ ABSL_GUARDED_BY(mutex_);  // Without the lag.
  std::map<std::string, RunVersions, std::less<>> runs_ ABSL_GUARDED_BY(mutex_);
  prometheus::Registry registry_;

  prometheus::Family<Counter>& append_rejections_ =
      AddFamily("append_rejections_total", "Appends rejected, by reason; nothing of them was stored.");
  prometheus::Family<Counter>& records_ = AddFamily("read_samples_total", "Samples answered by reads, by status.");
  prometheus::Family<Counter>& access_rejections_ =
      AddFamily("access_rejections_total", "Calls and messages rejected for their token, by what the answer was.");
  prometheus::Family<Counter>& store_errors_ = AddFamily(
      "store_errors_total", "Operations of the store that failed, and not by a fault of the caller, by status code.");
  prometheus::Family<Counter>& quota_rejections_ =
      AddFamily("quota_rejections_total",
                "Calls and messages rejected or ended for a limit of one run, one call or one kind of calls.");
  prometheus::Histogram& append_sizes_ = AddSizes("append_size_bytes", "Payload bytes of one accepted append.");
  Counter& appends_ = AddCounter("appends_total", "Appends accepted.");
  Counter& rows_ = AddCounter("append_rows_total", "Rows of accepted appends.");
  Counter& ingest_bytes_ = AddCounter("ingest_bytes_total", "Payload bytes of accepted appends.");
  Counter& trimmed_rows_ = AddCounter("trimmed_rows_total", "Rows sent again that were already committed.");
  Counter& conflicting_rows_ = AddCounter("conflicting_rows_total", "Trimmed rows with other routes than the stored.");
  Counter& late_rows_ = AddCounter("late_rows_total", "Rows that came after they were declared unrecorded.");
  Counter& unrecorded_rows_ = AddCounter("unrecorded_rows_total", "Rows committed without a route.");
  Counter& unverified_rows_ = AddCounter("unverified_rows_total", "Trimmed rows whose tokens could not be compared.");
  Gauge& token_file_rejected_ =
      AddGauge("token_file_rejected", "1 while the token file is one that is not taken: older tokens are in force.");
  Counter& token_file_failures_ =
      AddCounter("token_file_reload_failures_total",
                 "Changes of the token file that were not taken; the tokens stayed as they were.");

 public:  // What is counted where it happens.
  Counter& credits = AddCounter("credits_total", "Credit requests granted.");
  Counter& credit_rejections = AddCounter("credit_rejections_total", "Credit requests rejected: over budget.");
  Gauge& credit_bytes =
      AddGauge("memory_credit_bytes", "Bytes of the memory budget promised to append streams that have not come yet.");
  Counter& reads = AddCounter("reads_total", "Reads begun.");
  Gauge& waiting_read_bytes = AddGauge("waiting_read_bytes", "Memory that the requests of reads take which wait.");
  Counter& egress_bytes = AddCounter("egress_bytes_total", "Payload bytes of read messages.");
  Counter& egress_table_bytes = AddCounter("egress_table_bytes_total", "Bytes of read messages beside the payload.");
  Counter& expired = AddCounter("expired_samples_total", "Samples removed because they were idle past their TTL.");
  Counter& tls_reload_failures =
      AddCounter("tls_reload_failures_total",
                 "Looks at the TLS files that found them missing, not whole or not fitting; the old ones stayed.");
  Gauge& connections = AddGauge("connections", "Connections of gRPC that are open.");
  Counter& rejected_connections = AddCounter(
      "connections_rejected_total", "Connections closed at once: more than there may be, in all or of one address.");
  Counter& cut_connections =
      AddCounter("connections_cut_total", "Connections cut for calls that they began and took back.");
};

// Every RPC of the service, by its name there.
absl::Span<const absl::string_view> RpcMethods();

// routing_replay_rpcs_total{method,code}, _rpc_duration_seconds{method}, _rpcs_in_flight{method}. Thread-safe.
class RpcMetrics {
 public:
  // `registry` outlives it.
  explicit RpcMetrics(prometheus::Registry& registry);

  // `method` is one of RpcMethods().
  void Begin(absl::string_view method);
  // Calls that began and did not end.
  int in_flight() const { return in_flight_.load(std::memory_order_relaxed); }
  // Of one that began.
  void End(absl::string_view method, absl::StatusCode code, std::chrono::duration<double> took);

 private:
  struct Method {
    prometheus::Gauge* in_flight;
    prometheus::Histogram* duration;
  };
  prometheus::Family<prometheus::Counter>& calls_;
  std::atomic<int> in_flight_{0};
  std::map<absl::string_view, Method> methods_;  // Fixed once made.
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_METRICS_H_
