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
  explicit Metrics(const Clock& clock = Clock::Real());

  // One append of `run`, taken or rejected as `ack` says.
  struct CountedAppend {
    Producer producer;
    int64_t weight_version;
    int64_t rows;
    int64_t payload_bytes;
  };
  void CountAppend(absl::string_view run, const CountedAppend& append, const AppendAck& ack);
  void CountCredit(bool granted);
  // Credit that streams hold grew by so much, or shrank.
  void AddCreditBytes(int64_t bytes);
  // What reads take while they wait.
  void SetWaitingReadBytes(int64_t bytes);
  void CountRead();
  void CountRecord(absl::string_view run, Producer producer, const SampleRecord& record);
  void CountSent(int64_t table_bytes, int64_t payload_bytes);
  void CountExpired(int64_t samples);
  void CountAccessRejection(const absl::Status& status);
  // A call or an append ended so. Counted is what the store is at fault for.
  void CountStoreError(const absl::Status& status);
  // Of gRPC that are open: so many more, or fewer.
  void AddConnections(int64_t connections);
  void CountRejectedConnection();
  void CountCutConnection();
  // TLS files that are not good; those before go on being shown.
  void CountTlsReloadFailure();
  // What became of a change of the token file. One that is rejected leaves the tokens as they were.
  void CountTokenFileReload(bool taken);
  // "run_bytes", "run_streams", "max_deadline", "waiting_reads" or "control_calls".
  void CountQuotaRejection(const char* quota);

  // The run is gone, or went back to a checkpoint: the versions of what comes under its name begin again.
  void ForgetVersions(absl::string_view run);
  // Of weight versions since the start; kUnknownWeightVersion: none.
  struct Versions {
    int64_t newest_put, newest_get;  // Of all runs.
    // Of each run with a reader: the newest version that was put minus that of the sample that was read last. The
    // largest of these, 0 where no run was read within 30 minutes. Rows of trainers do not count: their versions are
    // others.
    int64_t lag;
  };
  Versions versions();

  // Name (labels in braces) and value of every counter, by name.
  std::vector<std::pair<std::string, int64_t>> Values() const;
  prometheus::Registry& registry() { return registry_; }

 private:
  prometheus::Counter& Add(const std::string& name, const std::string& help);
  void CountRejection(const absl::Status& status);
  struct RunVersions {
    int64_t put = kUnknownWeightVersion, get = kUnknownWeightVersion;
    Clock::Time read, used;
  };
  // The run's entry, used now.
  RunVersions& Use(absl::string_view run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  mutable Mutex mutex_;
  int64_t newest_put_ ABSL_GUARDED_BY(mutex_) = kUnknownWeightVersion;
  int64_t newest_get_ ABSL_GUARDED_BY(mutex_) = kUnknownWeightVersion;
  std::map<std::string, RunVersions, std::less<>> runs_ ABSL_GUARDED_BY(mutex_);
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& rejections_;
  prometheus::Family<prometheus::Counter>& records_;
  prometheus::Family<prometheus::Counter>& access_rejections_;
  prometheus::Family<prometheus::Counter>& store_errors_;
  prometheus::Family<prometheus::Counter>& quota_rejections_;
  prometheus::Histogram& append_sizes_;
  prometheus::Gauge &credit_bytes_, &waiting_read_bytes_, &token_file_rejected_, &connections_;
  prometheus::Counter &appends_, &rows_, &ingest_bytes_, &trimmed_rows_, &conflicting_rows_, &late_rows_,
      &unrecorded_rows_, &unverified_rows_, &credits_, &credit_rejections_, &reads_, &egress_bytes_,
      &egress_table_bytes_, &expired_, &tls_reload_failures_, &token_file_failures_, &rejected_connections_,
      &cut_connections_;
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
  const Method& Find(absl::string_view method) const;

  prometheus::Family<prometheus::Counter>& calls_;
  std::atomic<int> in_flight_{0};
  std::map<absl::string_view, Method> methods_;  // Fixed once made.
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_METRICS_H_
