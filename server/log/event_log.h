// What the server tells its operator: one line per event on standard error.
//
//   {"ts":"2026-03-01T12:00:00.123Z","level":"warning","event":"call_failed","message":"…","method":"Read"}
//
// As JSON, every line is one JSON value whatever is in it; as text, what is not printable is escaped. Above the level
// debug lines hold no ids of samples, nothing of payloads, and ids of runs only in the event "audit".
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

// All thread-safe, and for the whole process.

// From here on events are written to `out`, or to standard error; before, they go nowhere. `out` outlives the process's
// last event. Nobody waits for standard error to be read: a thread writes there, and of lines that it does not get rid
// of the oldest are dropped and counted.
void StartLogging(LogFormat format, std::ostream* out = nullptr);
// Lines of gRPC and protobuf become the events "grpc" and "protobuf". Of one place in their source one comes in 10 s,
// and the next one has "held_back", the number in between: clients cause them at will, one per text that is not UTF-8.
void LogLinesOfLibraries();
// Returns once standard error has all lines, or `patience` is over. Before the process ends.
void FlushLog(std::chrono::milliseconds patience = std::chrono::seconds(2));
int64_t DroppedLogLines();

// "debug", "info", "warning", "error". INVALID_ARGUMENT naming them; then the level is as it was.
absl::Status SetLogLevel(absl::string_view level);
absl::string_view GetLogLevel();
bool IsLogged(LogLevel level);

// `event` and the names of fields are words of this program: [a-z_]+. Messages and values may be anything.
void LogEvent(LogLevel level, absl::string_view event, absl::string_view message, const LogFields& fields = {});

// Lines on their way to a file descriptor that perhaps nobody reads: writing a line never waits for its reader.
// Thread-safe. Lives as long as the process: its thread may be in a write that never ends.
class LineQueue {
 public:
  // `dropped` is called by the thread that writes, each time that all is written after lines were dropped, with the
  // number of these.
  LineQueue(int fd, size_t most_bytes, std::function<void(int64_t)> dropped);
  LineQueue(const LineQueue&) = delete;
  LineQueue& operator=(const LineQueue&) = delete;
  ~LineQueue() = delete;

  // With its newline. Where there is no room the oldest lines go.
  void Push(std::string line);
  // Of all lines since the start.
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
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // Of lines_.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Of one key one line passes per interval, and the next one says how many were held back. Thread-safe. Keys come from a
// small set: words of this program, never of clients.
class RepeatFilter {
 public:
  // `clock` outlives it.
  RepeatFilter(const Clock& clock, Clock::Duration interval) : clock_(clock), interval_(interval) {}

  // The number held back since the last line of `key`, which are told now; nothing: this one is held back, too.
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
