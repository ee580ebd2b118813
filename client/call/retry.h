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

// Decides what happens after a failed attempt. Not thread-safe.
class RetrySchedule {
 public:
  // Attempts may begin up to `deadline`.
  explicit RetrySchedule(Clock::Time deadline);
  RetrySchedule(Clock::Time deadline, Backoff backoff) : deadline_(deadline), backoff_(std::move(backoff)) {}

  // How long to wait before the next attempt; nothing if `status` is final: anything but UNAVAILABLE, or no time left.
  std::optional<Clock::Duration> WaitAfter(const absl::Status& status, Clock::Time now);

 private:
  Clock::Time deadline_;
  Backoff backoff_;
};

// The clock of a retry, which tests replace.
struct RetryTime {
  std::function<Clock::Time()> now;
  std::function<void(Clock::Duration)> sleep;

  static RetryTime Real();
};

// Calls `attempt` until it succeeds or `schedule` says that its status is final. Calls it at least once. For idempotent
// calls only.
absl::Status RetryUnavailable(RetrySchedule schedule, const RetryTime& time,
                              const std::function<absl::Status()>& attempt);

}  // namespace routing_replay::client

#endif  // CLIENT_RETRY_H_
