// Lines for people: warnings that no error reports, or not yet.
#ifndef CLIENT_LOG_H_
#define CLIENT_LOG_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace routing_replay::client {

// Dropped unless somebody has asked for lines before. If nobody takes them, the oldest are dropped. Thread-safe.
void Log(std::string line);
// Waits for at least one line since the last call, as long as the call of this thread lasts
// (client/call/cancellation.h).
absl::StatusOr<std::vector<std::string>> TakeLogLines();

}  // namespace routing_replay::client

#endif  // CLIENT_LOG_H_
