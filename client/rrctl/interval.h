// Times as the flags of rrctl take them.
#ifndef CLIENT_RRCTL_INTERVAL_H_
#define CLIENT_RRCTL_INTERVAL_H_

#include <chrono>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay::client {

// Seconds ("2", "0.5") or a number with a unit ("500ms", "1m30s"). INVALID_ARGUMENT for anything else, and for less
// than a millisecond or more than a day.
absl::StatusOr<std::chrono::milliseconds> ParseInterval(absl::string_view text);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_INTERVAL_H_
