// The retry rule of the client.
#ifndef CLIENT_RETRY_H_
#define CLIENT_RETRY_H_

#include <chrono>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "proto/wire/backoff.h"
#include "proto/wire/clock.h"

namespace routing_replay::client {

// Decides whether and when to retry after a failed attempt. Not thread-safe.
class RetrySchedule {
 public:
  static constexpr Backoff::Options kBackoff{.initial = std::chrono::milliseconds(50),
                                             .maximum = std::chrono::seconds(2)};

  // Attempts may begin until `deadline`.
  explicit RetrySchedule(Clock::Time deadline, Backoff backoff = Backoff(kBackoff))
      : deadline_(deadline), backoff_(std::move(backoff)) {}

  // Returns how long to wait before the next attempt, or nothing if there must be none: `status` is not UNAVAILABLE, or
  // no time is left.
  std::optional<Clock::Duration> WaitAfter(const absl::Status& status, Clock::Time now) {
    if (!absl::IsUnavailable(status)) return std::nullopt;
    const Clock::Duration wait = backoff_.Next();
    return now + wait < deadline_ ? std::optional(wait) : std::nullopt;
  }

 private:
  Clock::Time deadline_;
  Backoff backoff_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_RETRY_H_
