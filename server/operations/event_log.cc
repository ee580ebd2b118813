#include "server/operations/event_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spdlog/fmt/chrono.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

// What cannot be written, as to a pipe without a reader, is gone.
void WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t size = write(fd, text.data(), text.size());
    if (size > 0) text.remove_prefix(static_cast<size_t>(size));
    if (size < 0 && errno == EAGAIN) {  // Somebody who shares the file made it so that writes do not wait.
      pollfd writable{.fd = fd, .events = POLLOUT, .revents = 0};
      poll(&writable, 1, -1);
    } else if (size < 0 && errno != EINTR) {
      return;
    }
  }
}

using nlohmann::ordered_json;

// Of the logger whose messages are made by LogEvent: they are taken as they are.
constexpr char kEvents[] = "events";

struct LevelName {
  const char* name;
  spdlog::level::level_enum level;
};
constexpr LevelName kLevels[] = {{"debug", spdlog::level::debug},
                                 {"info", spdlog::level::info},
                                 {"warning", spdlog::level::warn},
                                 {"error", spdlog::level::err}};

const char* NameOf(spdlog::level::level_enum level) {
  for (const LevelName& known : kLevels) {
    if (known.level == level) return known.name;
  }
  return "info";
}

// Bytes that are no UTF-8 are replaced, so that every line parses.
std::string Dump(const ordered_json& json) { return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

ordered_json ToJson(absl::string_view event, absl::string_view message, const LogFields& fields) {
  ordered_json json;
  json["event"] = std::string(event);
  json["message"] = std::string(message);
  for (const auto& [name, value] : fields) {
    std::visit([&, &name = name](const auto& v) { json[name] = v; }, value);
  }
  return json;
}

// Neither a new line nor a terminal's escape gets through.
std::string Printable(absl::string_view text) { return absl::CEscape(text); }

std::string ToText(absl::string_view event, absl::string_view message, const LogFields& fields) {
  std::string text = absl::StrCat(event, message.empty() ? "" : ": ", Printable(message));
  for (const auto& [name, value] : fields) {
    const auto* number = std::get_if<int64_t>(&value);
    absl::StrAppend(&text, " ", name, "=", number ? absl::StrCat(*number) : Printable(std::get<std::string>(value)));
  }
  return text;
}

std::string Timestamp(spdlog::log_clock::time_point time) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(static_cast<std::time_t>(ms / 1000)), ms % 1000);
}

class LineFormatter final : public spdlog::formatter {
 public:
  explicit LineFormatter(LogFormat format) : format_(format) {}
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<LineFormatter>(format_); }

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const absl::string_view payload(message.payload.data(), message.payload.size());
    const bool event = absl::string_view(message.logger_name.data(), message.logger_name.size()) == kEvents;
    const std::string ts = Timestamp(message.time);
    const char* level = NameOf(message.level);
    if (format_ == LogFormat::kJson) {
      const std::string rest = event ? std::string(payload) : Dump(ToJson("log", payload, {}));
      fmt::format_to(std::back_inserter(out), R"({{"ts":"{}","level":"{}",{})", ts, level, rest.substr(1));
    } else {
      fmt::format_to(std::back_inserter(out), "{} {:7} {}", ts, level,
                     event ? std::string(payload) : Printable(payload));
    }
    out.push_back('\n');
  }

 private:
  const LogFormat format_;
};

constexpr size_t kMostWaitingBytes = size_t{4} << 20;

LineQueue& StandardError() {
  static auto* const queue = new LineQueue(STDERR_FILENO, kMostWaitingBytes, [](int64_t lines) {
    LogEvent(LogLevel::kWarning, "log_lines_dropped", "nobody took these lines in time", {{"lines", lines}});
  });
  return *queue;
}

class StandardErrorSink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    StandardError().Push(std::string(line.data(), line.size()));
  }
  void flush_() override {}
};

// What LogEvent needs of StartLogging.
struct EventLogger {
  LogFormat format;
  std::shared_ptr<spdlog::logger> logger;
};
std::atomic<std::shared_ptr<const EventLogger>>& Started() {
  static std::atomic<std::shared_ptr<const EventLogger>> started;
  return started;
}

constexpr std::chrono::seconds kInterval(10);

void LogLineOf(const char* library, absl::string_view file, int line, absl::string_view message) {
  // Lives as long as the threads of libraries, which may outlive static objects.
  static auto* const filter = new RepeatFilter(Clock::Real(), kInterval);
  // "chttp2_server.cc:1045", whatever folder it was built in.
  std::string place = absl::StrCat(file.substr(file.rfind('/') + 1), ":", line);
  const auto held_back = filter->Pass(place);
  if (!held_back) return;
  LogFields fields = {{"place", std::move(place)}};
  if (*held_back > 0) fields.emplace_back("held_back", *held_back);
  LogEvent(LogLevel::kWarning, library, message, fields);
}

void LogGrpcLine(gpr_log_func_args* line) {
  LogLineOf("grpc", line->file, line->line, line->message);
  if (absl::StartsWith(line->message, "assertion failed")) FlushLog();  // It aborts next.
}

void LogProtobufLine(google::protobuf::LogLevel level, const char* file, int line, const std::string& message) {
  LogLineOf("protobuf", file, line, message);
  if (level == google::protobuf::LOGLEVEL_FATAL) FlushLog();
}

}  // namespace

void StartLogging(LogFormat format, std::ostream* out) {
  spdlog::sink_ptr sink;
  if (out == nullptr) {
    sink = std::make_shared<StandardErrorSink>();
  } else {
    sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(*out, /*force_flush=*/true);
  }
  sink->set_formatter(std::make_unique<LineFormatter>(format));
  const auto level = spdlog::get_level();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("server", sink));
  auto events = std::make_shared<spdlog::logger>(kEvents, sink);
  spdlog::drop(kEvents);
  spdlog::register_logger(events);
  spdlog::set_level(level);
  Started() = std::make_shared<const EventLogger>(EventLogger{format, std::move(events)});
}

void FlushLog(std::chrono::milliseconds patience) { StandardError().Flush(patience); }

int64_t DroppedLogLines() { return StandardError().dropped(); }

absl::Status SetLogLevel(absl::string_view level) {
  for (const LevelName& known : kLevels) {
    if (level != known.name) continue;
    spdlog::set_level(known.level);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("level: not one of debug, info, warning, error");
}

absl::string_view GetLogLevel() { return NameOf(spdlog::get_level()); }

bool IsLogged(LogLevel level) { return kLevels[static_cast<size_t>(level)].level >= spdlog::get_level(); }

void LogEvent(LogLevel level, absl::string_view event, absl::string_view message, const LogFields& fields) {
  const std::shared_ptr<const EventLogger> started = Started();
  if (started == nullptr || !IsLogged(level)) return;
  const std::string line =
      started->format == LogFormat::kJson ? Dump(ToJson(event, message, fields)) : ToText(event, message, fields);
  started->logger->log(kLevels[static_cast<size_t>(level)].level, spdlog::string_view_t(line));
}

void LogLinesOfLibraries() {
  gpr_set_log_function(LogGrpcLine);
  google::protobuf::SetLogHandler(LogProtobufLine);
}

LineQueue::LineQueue(int fd, size_t most_bytes, std::function<void(int64_t)> dropped)
    : fd_(fd), most_bytes_(most_bytes), tell_dropped_(std::move(dropped)) {
  // Signals are for other threads.
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
