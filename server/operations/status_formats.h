// The status of a server as Prometheus sees it, and as JSON.
#ifndef SERVER_OPERATIONS_STATUS_FORMATS_H_
#define SERVER_OPERATIONS_STATUS_FORMATS_H_

#include <prometheus/metric_family.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/operations/call_record.h"
#include "server/operations/status.h"

namespace routing_replay::server {

// The process alone, of which `status` has version, start, readiness and certificate.
std::vector<prometheus::MetricFamily> ProcessGaugesOf(const ServerStatus& status);

std::vector<prometheus::MetricFamily> GaugesOf(const ServerStatus& status);

// `counters`: as Metrics::Values. One line, whatever the names in it are.
std::string StatusJson(const ServerStatus& status, const std::vector<std::pair<std::string, int64_t>>& counters,
                       const std::vector<CallTrouble>& troubles);

// 2026-03-01T12:00:00Z
std::string FormatUtc(std::chrono::system_clock::time_point time);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_STATUS_FORMATS_H_
