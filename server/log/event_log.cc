#include "server/log/event_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <cerrno>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace routing_replay::server {
namespace {

// Text that cannot be written, for example to a pipe without a reader, is lost.
void WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t size = write(fd, text.data(), text.size());
    if (size > 0) text.remove_prefix(static_cast<size_t>(size));
    if (size < 0 && errno == EAGAIN) {  // Another process that has this file open made it non-blocking.
      pollfd writable{.fd = fd, .events = POLLOUT, .revents = 0};
      poll(&writable, 1, -1);
    } else if (size < 0 && errno != EINTR) {
      return;
    }
  }
}

constexpr const char* kLevels[] = {"debug", "info", "warning", "error"};

std::string ToJson(absl::string_view ts, absl::string_view level, absl::string_view event, absl::string_view message,
                   const LogFields& fields) {
  nlohmann::ordered_json json = {{"ts", std::string(ts)},
                                 {"level", std::string(level)},
                                 {"event", std::string(event)},
                                 {"message", std::string(message)}};
  for (const auto& [name, value] : fields) {
    std::visit([&, &name = name](const auto& v) { json[name] = v; }, value);
  }
  // Bytes that are not UTF-8 are replaced, so that every line parses.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// Escapes line breaks and terminal control sequences in texts.
std::string ToText(absl::string_view ts, absl::string_view level, absl::string_view event, absl::string_view message,
                   const LogFields& fields) {
  std::string text =
      absl::StrFormat("%s %-7s %s%s%s", ts, level, event, message.empty() ? "" : ": ", absl::CEscape(message));
  for (const auto& [name, value] : fields) {
    const auto* number = std::get_if<int64_t>(&value);
    absl::StrAppend(&text, " ", name, "=",
                    number ? absl::StrCat(*number) : absl::CEscape(std::get<std::string>(value)));
  }
  return text;
}

constexpr size_t kMostWaitingBytes = size_t{4} << 20;

LineQueue& StandardError() {
  static auto* const queue = new LineQueue(STDERR_FILENO, kMostWaitingBytes, [](int64_t lines) {
    LogEvent(LogLevel::kWarning, "log_lines_dropped",
             "log lines were dropped because standard error was not read in time", {{"lines", lines}});
  });
  return *queue;
}

std::atomic<LogLevel> least_level{LogLevel::kInfo};

struct Log {
  Mutex mutex;
  std::optional<LogFormat> format ABSL_GUARDED_BY(mutex);  // Nothing: logging has not started.
  std::ostream* out ABSL_GUARDED_BY(mutex) = nullptr;      // Null: standard error.
};
// Never destroyed: threads that log may outlive static objects.
Log& TheLog() {
  static auto* const log = new Log;
  return *log;
}

constexpr std::chrono::seconds kInterval(10);

void LogLineOf(const char* library, absl::string_view file, int line, absl::string_view message) {
  // Never destroyed: threads of libraries may outlive static objects.
  static auto* const filter = new RepeatFilter(Clock::Real(), kInterval);
  // "chttp2_server.cc:1045", without the directory.
  std::string place = absl::StrCat(file.substr(file.rfind('/') + 1), ":", line);
  const auto held_back = filter->Pass(place);
  if (!held_back) return;
  LogFields fields = {{"place", std::move(place)}};
  if (*held_back > 0) fields.emplace_back("held_back", *held_back);
  LogEvent(LogLevel::kWarning, library, message, fields);
}

void LogGrpcLine(gpr_log_func_args* line) {
  LogLineOf("grpc", line->file, line->line, line->message);
  if (absl::StartsWith(line->message, "assertion failed")) FlushLog();  // gRPC aborts the process next.
}

void LogProtobufLine(google::protobuf::LogLevel level, const char* file, int line, const std::string& message) {
  LogLineOf("protobuf", file, line, message);
  if (level == google::protobuf::LOGLEVEL_FATAL) FlushLog();
}

}  // namespace

void StartLogging(LogFormat format, std::ostream* out) {
  Log& log = TheLog();
  MutexLock lock(log.mutex);
  log.format = format;
  log.out = out;
}

void FlushLog(std::chrono::milliseconds patience) { StandardError().Flush(patience); }

int64_t DroppedLogLines() { return StandardError().dropped(); }

absl::Status SetLogLevel(absl::string_view level) {
  for (size_t i = 0; i < std::size(kLevels); ++i) {
    if (level != kLevels[i]) continue;
    least_level = static_cast<LogLevel>(i);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("level: must be debug, info, warning or error");
}

absl::string_view GetLogLevel() { return kLevels[static_cast<size_t>(least_level.load())]; }

bool IsLogged(LogLevel level) { return level >= least_level; }

void LogEvent(LogLevel level, absl::string_view event, absl::string_view message, const LogFields& fields) {
  if (!IsLogged(level)) return;
  Log& log = TheLog();
  MutexLock lock(log.mutex);
  if (!log.format) return;
  const std::string ts = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  std::string line = (*log.format == LogFormat::kJson ? ToJson : ToText)(ts, kLevels[static_cast<size_t>(level)], event,
                                                                         message, fields);
  line += '\n';
  if (log.out == nullptr) return StandardError().Push(std::move(line));
  *log.out << line << std::flush;
}

void LogLinesOfLibraries() {
  gpr_set_log_function(LogGrpcLine);
  google::protobuf::SetLogHandler(LogProtobufLine);
}

LineQueue::LineQueue(int fd, size_t most_bytes, std::function<void(int64_t)> dropped)
    : fd_(fd), most_bytes_(most_bytes), tell_dropped_(std::move(dropped)) {
  // Blocks all signals on the writing thread: other threads handle them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([this] { Write(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void LineQueue::Push(std::string line) {
  MutexLock lock(mutex_);
  bytes_ += line.size();
  lines_.push_back(std::move(line));
  while (bytes_ > most_bytes_) {
    bytes_ -= lines_.front().size();
    lines_.pop_front();
    ++dropped_;
  }
  changed_.NotifyAll();
}

int64_t LineQueue::dropped() const {
  MutexLock lock(mutex_);
  return dropped_;
}

void LineQueue::Flush(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  MutexLock lock(mutex_);
  while (writing_ || !lines_.empty()) {
    if (!changed_.WaitUntil(mutex_, deadline)) return;
  }
}

void LineQueue::Write() {
  for (int64_t told = 0;;) {
    std::string line;
    int64_t dropped = 0;
    {
      MutexLock lock(mutex_);
      writing_ = false;
      changed_.NotifyAll();
      if (!lines_.empty() || dropped_ == told) {
        while (lines_.empty()) changed_.Wait(mutex_);
        line = std::move(lines_.front());
        lines_.pop_front();
        bytes_ -= line.size();
      }
      dropped = dropped_;
      writing_ = true;
    }
    if (!line.empty()) {
      WriteAll(fd_, line);
    } else {
      tell_dropped_(dropped - std::exchange(told, dropped));
    }
  }
}

std::optional<int64_t> RepeatFilter::Pass(const std::string& key) {
  const Clock::Time now = clock_.Now();
  MutexLock lock(mutex_);
  const auto [found, first] = entries_.try_emplace(key, Entry{now + interval_});
  if (first) return 0;
  Entry& entry = found->second;
  if (now < entry.next) {
    ++entry.held_back;
    return std::nullopt;
  }
  entry.next = now + interval_;
  return std::exchange(entry.held_back, 0);
}

}  // namespace routing_replay::server
