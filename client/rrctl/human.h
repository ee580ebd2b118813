// Figures as people read them.
#ifndef CLIENT_RRCTL_HUMAN_H_
#define CLIENT_RRCTL_HUMAN_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay {

// "12.3 MiB"
std::string HumanBytes(int64_t bytes);

// "1,234,567"
std::string HumanCount(int64_t count);

// The two largest units that matter: "250 ms", "3.2 s", "5m 12s", "3h 5m", "2d 3h".
std::string HumanDuration(std::chrono::milliseconds duration);

// RFC 3339 in UTC: "2025-01-31T09:30:00.125Z".
std::string Timestamp(std::chrono::system_clock::time_point time);

// Seconds ("2", "0.5") or a number with a unit ("500ms", "1m30s"). INVALID_ARGUMENT for anything else, and for less
// than a millisecond or more than a day.
absl::StatusOr<std::chrono::milliseconds> ParseInterval(absl::string_view text);

}  // namespace routing_replay

#endif  // CLIENT_RRCTL_HUMAN_H_
