// Appends that failed, as lines of the log.
#ifndef CLIENT_APPENDER_FAILURE_LOG_H_
#define CLIENT_APPENDER_FAILURE_LOG_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"

namespace routing_replay::client {

// Of one appender. Not thread-safe.
class FailureLog {
 public:
  explicit FailureLog(std::string run) : run_(std::move(run)) {}

  // A line, or where there were many of late only a count.
  void Add(absl::string_view sample, const absl::Status& why, Clock::Time now);
  // Tells what was only counted.
  void TellRest();

 private:
  const std::string run_;
  Clock::Time since_;
  int lines_ = 0;  // Since then.
  int64_t rest_ = 0;
};

}  // namespace routing_replay::client

#endif  // CLIENT_APPENDER_FAILURE_LOG_H_
