// The status of a server as one HTML page, for people: it loads nothing, and needs no JavaScript.
#ifndef SERVER_OPERATIONS_STATUS_PAGE_H_
#define SERVER_OPERATIONS_STATUS_PAGE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/operations/call_record.h"
#include "server/operations/status.h"

namespace routing_replay::server {

struct StatusPageInput {
  const ServerStatus& status;
  const std::vector<std::pair<std::string, int64_t>>& counters;  // As Metrics::Values.
  const std::vector<CallTrouble>& troubles;
  std::string settings;  // As YAML.
  std::chrono::system_clock::time_point now;
  bool refreshing = false;  // The page is asked for again and again.
};

// status_page.html, which the build makes a constant.
extern const char kStatusPageTemplate[];

// Runs and weight versions on the page are no more than this, those with the most bytes.
inline constexpr size_t kMostShares = 50;

// Every value is escaped.
std::string StatusPage(const StatusPageInput& input);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_STATUS_PAGE_H_
