// The retry rule of the client.
#ifndef CLIENT_RETRY_H_
#define CLIENT_RETRY_H_

#include <functional>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "proto/wire/backoff.h"
#include "proto/wire/clock.h"

namespace routing_replay::client {

// Decides whether and when to retry after a failed attempt. Not thread-safe.
class RetrySchedule {
 public:
  // Attempts may begin until `deadline`.
  explicit RetrySchedule(Clock::Time deadline);
  RetrySchedule(Clock::Time deadline, Backoff backoff) : deadline_(deadline), backoff_(std::move(backoff)) {}

  // Returns how long to wait before the next attempt, or nothing if there must be none: `status` is not UNAVAILABLE, or
  // no time is left.
  std::optional<Clock::Duration> WaitAfter(const absl::Status& status, Clock::Time now);

 private:
  Clock::Time deadline_;
  Backoff backoff_;
};

// The clock of the retry rule; tests replace it.
struct RetryTime {
  std::function<Clock::Time()> now;
  std::function<void(Clock::Duration)> sleep;

  static RetryTime Real();
};

// Calls `attempt`, at least once, until it succeeds or `schedule` allows no further attempt. For idempotent calls only.
absl::Status RetryUnavailable(RetrySchedule schedule, const RetryTime& time,
                              const std::function<absl::Status()>& attempt);

}  // namespace routing_replay::client

#endif  // CLIENT_RETRY_H_
