// A question asked again and again.
#ifndef CLIENT_RRCTL_WATCH_H_
#define CLIENT_RRCTL_WATCH_H_

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/rrctl/output.h"

namespace routing_replay::client {

// Time and terminal as Watch sees them.
struct WatchSurroundings {
  std::function<std::chrono::system_clock::time_point()> now;
  std::function<void(std::chrono::milliseconds)> sleep;
  // Absent: not a terminal, so nothing is drawn over.
  std::function<TerminalSize()> terminal;
};

struct WatchOptions {
  std::chrono::milliseconds interval = std::chrono::seconds(2);
  std::optional<int64_t> count;  // Absent: until Ctrl-C.
};

// Asks, shows, sleeps. JSON: a line {"time": …, "result": …} per answer, {"time": …, "error": …} for a server that
// could not be reached. For people: the answer under the time, drawn over the one before on a terminal, cut to its
// size; numbers of an object that change are shown with their change per second.
//
// A first question that fails and a later one that the server refuses end it with their error; a server that cannot be
// reached meanwhile is asked again. With a count: the error of the last question, if it failed.
absl::Status Watch(const std::function<absl::StatusOr<Document>()>& ask, Layout layout, const WatchOptions& options,
                   const WatchSurroundings& surroundings, Output& output);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_WATCH_H_
