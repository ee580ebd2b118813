// The status of a server as JSON, for programs.
#ifndef SERVER_OPERATIONS_STATUS_JSON_H_
#define SERVER_OPERATIONS_STATUS_JSON_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/operations/calls/call_journal.h"
#include "server/operations/server_status.h"

namespace routing_replay::server {

// `counters`: as Metrics::Values. One line, whatever the names in it are.
std::string StatusJson(const ServerStatus& status, const std::vector<std::pair<std::string, int64_t>>& counters,
                       const std::vector<CallTrouble>& troubles);

// 2026-03-01T12:00:00Z
std::string FormatUtc(std::chrono::system_clock::time_point time);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_STATUS_JSON_H_
