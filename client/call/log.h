// Lines for people: warnings of what no error says, or not yet.
#ifndef CLIENT_LOG_H_
#define CLIENT_LOG_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace routing_replay::client {

// Dropped unless somebody has asked for lines; of those that nobody takes the oldest go. Thread-safe.
void Log(std::string line);
// Waits for lines since the last call, at least one: as long as the call of this thread lasts (client/cancellation.h).
absl::StatusOr<std::vector<std::string>> TakeLogLines();

}  // namespace routing_replay::client

#endif  // CLIENT_LOG_H_
