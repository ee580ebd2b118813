// What the server tells its operator: one line per event on standard error.
//
//   {"ts":"2026-03-01T12:00:00.123Z","level":"warning","event":"call_failed","message":"…","method":"Read"}
//
// As JSON, every line is one JSON value whatever is in it; as text, what is not printable is escaped. Above the level
// debug lines hold no ids of samples, nothing of payloads, and ids of runs only in the event "audit". spdlog is
// underneath: what is written through its own functions comes out in the same form, as the event "log".
#ifndef SERVER_OPERATIONS_LOG_EVENT_LOG_H_
#define SERVER_OPERATIONS_LOG_EVENT_LOG_H_

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace routing_replay::server {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

using LogFields = std::vector<std::pair<std::string, std::variant<std::string, int64_t>>>;

// All thread-safe, and for the whole process.

// From here on events are written to `out`, or to standard error; before, they go nowhere. `out` outlives the process's
// last event. Nobody waits for standard error to be read: a thread writes there, and of lines that it does not get rid
// of the oldest are dropped and counted.
void StartLogging(LogFormat format, std::ostream* out = nullptr);
// Returns once standard error has all lines, or `patience` is over. Before the process ends.
void FlushLog(std::chrono::milliseconds patience = std::chrono::seconds(2));
int64_t DroppedLogLines();
// "auto" (text where standard error is a terminal), "json", "text".
LogFormat ChooseLogFormat(absl::string_view name);

// "debug", "info", "warning", "error". INVALID_ARGUMENT naming them; then the level is as it was.
absl::Status SetLogLevel(absl::string_view level);
absl::string_view GetLogLevel();
bool IsLogged(LogLevel level);

// `event` and the names of fields are words of this program: [a-z_]+. Messages and values may be anything.
void LogEvent(LogLevel level, absl::string_view event, absl::string_view message, const LogFields& fields = {});

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_LOG_EVENT_LOG_H_
