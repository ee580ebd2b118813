// The server's log: one line per event on standard error.
//
//   {"ts":"2026-03-01T12:00:00.123Z","level":"warning","event":"call_failed","message":"…","method":"Read"}
//
// In JSON form every line is one valid JSON value, whatever its fields contain; in text form unprintable characters are
// escaped. Lines above the level debug contain no sample ids and no payloads, and run ids only in the event "audit".
#ifndef SERVER_LOG_EVENT_LOG_H_
#define SERVER_LOG_EVENT_LOG_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"

namespace routing_replay::server {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

using LogFields = std::vector<std::pair<std::string, std::variant<std::string, int64_t>>>;

// All functions are thread-safe, and act on the whole process.

// Starts writing events to `out`, or to standard error if it is null. Earlier events are lost. `out` must outlive the
// process's last event. No caller waits for standard error: a thread writes there, and if it cannot keep up, the oldest
// lines are dropped and counted.
void StartLogging(LogFormat format, std::ostream* out = nullptr);
// Log lines of gRPC and protobuf become the events "grpc" and "protobuf". Each source line of these libraries may log
// once in 10 s; the field "held_back" of the next event is the number of lines that were suppressed. Without this limit
// clients could cause any number of lines, for example one per text that is not UTF-8.
void LogLinesOfLibraries();
// Returns once standard error has all lines, or `patience` is over. Call it before the process ends.
void FlushLog(std::chrono::milliseconds patience = std::chrono::seconds(2));
int64_t DroppedLogLines();

// `level`: debug, info, warning or error. For other words INVALID_ARGUMENT, and the level stays the same.
absl::Status SetLogLevel(absl::string_view level);
absl::string_view GetLogLevel();
bool IsLogged(LogLevel level);

// `event` and the names of fields are fixed words: [a-z_]+. Messages and values may be anything.
void LogEvent(LogLevel level, absl::string_view event, absl::string_view message, const LogFields& fields = {});

// A queue of lines to write to a file descriptor. Adding a line never waits, even if nobody reads the descriptor.
// Thread-safe. Never destroyed, because its thread may be blocked in a write forever.
class LineQueue {
 public:
  // After lines were dropped, the writing thread writes all other lines, then calls `dropped` with the number dropped.
  LineQueue(int fd, size_t most_bytes, std::function<void(int64_t)> dropped);
  LineQueue(const LineQueue&) = delete;
  LineQueue& operator=(const LineQueue&) = delete;
  ~LineQueue() = delete;

  // Adds a line, which must end with a newline. If more than `most_bytes` wait, the oldest lines are dropped.
  void Push(std::string line);
  // Lines dropped since the start.
  int64_t dropped() const;
  // Returns once all is written, or `patience` is over.
  void Flush(std::chrono::milliseconds patience);

 private:
  void Write();

  const int fd_;
  const size_t most_bytes_;
  const std::function<void(int64_t)> tell_dropped_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // Size of lines_.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Lets one line per key and interval pass, and counts those that it suppresses. Thread-safe. Keys are never removed, so
// they must come from a small set: words of this program, not of clients.
class RepeatFilter {
 public:
  // `clock` must outlive it.
  RepeatFilter(const Clock& clock, Clock::Duration interval) : clock_(clock), interval_(interval) {}

  // Call it before a line of `key` is logged. Returns how many lines of `key` were suppressed since one passed, or
  // nothing if this line must be suppressed, too.
  std::optional<int64_t> Pass(const std::string& key);

 private:
  struct Entry {
    Clock::Time next;
    int64_t held_back = 0;
  };

  const Clock& clock_;
  const Clock::Duration interval_;
  Mutex mutex_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_LOG_EVENT_LOG_H_
