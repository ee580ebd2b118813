// Counters of the RPCs as a whole; what is inside of them is counted by Metrics.
#ifndef SERVER_OPERATIONS_CALLS_RPC_METRICS_H_
#define SERVER_OPERATIONS_CALLS_RPC_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <atomic>
#include <chrono>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace routing_replay::server {

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

#endif  // SERVER_OPERATIONS_CALLS_RPC_METRICS_H_
