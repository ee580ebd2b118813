#include "server/operations/calls/rpc_metrics.h"

namespace routing_replay::server {
namespace {

constexpr absl::string_view kMethods[] = {"OpenRun", "Append",   "Put",          "Seal",    "Truncate",
                                          "Read",    "Stat",     "List",         "Release", "ReleaseForCheckpoint",
                                          "DropRun", "ListRuns", "GetServerInfo"};

// A read may wait for its rows as long as --max-wait, 10 minutes unless that is changed.
const prometheus::Histogram::BucketBoundaries kSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                          1,     2.5,    5,     10,   30,    60,   120, 300,  600};

}  // namespace

absl::Span<const absl::string_view> RpcMethods() { return kMethods; }

RpcMetrics::RpcMetrics(prometheus::Registry& registry)
    : calls_(prometheus::BuildCounter()
                 .Name("routing_replay_rpcs_total")
                 .Help("Calls that ended, by method and status code.")
                 .Register(registry)) {
  auto& in_flight =
      prometheus::BuildGauge().Name("routing_replay_rpcs_in_flight").Help("Calls that go on now.").Register(registry);
  auto& durations = prometheus::BuildHistogram()
                        .Name("routing_replay_rpc_duration_seconds")
                        .Help("From a call's arrival to its end; of Append and Read that is their stream's.")
                        .Register(registry);
  for (const absl::string_view name : kMethods) {
    const prometheus::Labels labels = {{"method", std::string(name)}};
    methods_[name] = {&in_flight.Add(labels), &durations.Add(labels, kSeconds)};
  }
}

const RpcMetrics::Method& RpcMetrics::Find(absl::string_view method) const { return methods_.at(method); }

void RpcMetrics::Begin(absl::string_view method) {
  ++in_flight_;
  Find(method).in_flight->Increment();
}

void RpcMetrics::End(absl::string_view method, absl::StatusCode code, std::chrono::duration<double> took) {
  --in_flight_;
  Find(method).in_flight->Decrement();
  Find(method).duration->Observe(took.count());
  calls_.Add({{"method", std::string(method)}, {"code", absl::StatusCodeToString(code)}}).Increment();
}

}  // namespace routing_replay::server
