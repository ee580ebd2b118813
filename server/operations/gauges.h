// The status of a server as Prometheus sees it.
#ifndef SERVER_OPERATIONS_GAUGES_H_
#define SERVER_OPERATIONS_GAUGES_H_

#include <prometheus/metric_family.h>

#include <vector>

#include "server/operations/server_status.h"

namespace routing_replay::server {

// Runs that are told of one by one are no more than this, those with the most bytes.
inline constexpr size_t kMostRunMetrics = 100;

// The process alone, of which `status` has version, start, readiness and certificate.
std::vector<prometheus::MetricFamily> ProcessGaugesOf(const ServerStatus& status);

// `per_run`: also of each run, under its name.
std::vector<prometheus::MetricFamily> GaugesOf(const ServerStatus& status, bool per_run);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_GAUGES_H_
