// Log lines for people: warnings about things that no call has reported as an error.
#ifndef CLIENT_LOG_H_
#define CLIENT_LOG_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace routing_replay::client {

// Adds a line. Lines are dropped until TakeLogLines is called for the first time. If nobody takes lines, the oldest are
// dropped. Thread-safe.
void Log(std::string line);
// Returns all lines that no earlier call returned, and waits until there is one. The wait ends with an error when this
// thread's call is cancelled or reaches its deadline (client/call/cancellation.h).
absl::StatusOr<std::vector<std::string>> TakeLogLines();

}  // namespace routing_replay::client

#endif  // CLIENT_LOG_H_
