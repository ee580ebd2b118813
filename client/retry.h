// Calls that may be made again: the one retry rule of the client.
#ifndef CLIENT_RETRY_H_
#define CLIENT_RETRY_H_

#include <functional>

#include "absl/status/status.h"
#include "client/backoff.h"
#include "proto/wire/clock.h"

namespace routing_replay {

// Time as a dependency of a retry.
struct RetryTime {
  std::function<Clock::Time()> now;
  std::function<void(Clock::Duration)> sleep;

  static RetryTime Real();
};

// Calls `attempt` until it gives something else than UNAVAILABLE, or until the next wait would not end before
// `deadline`; then the last UNAVAILABLE comes back. Calls it at least once. For idempotent calls only.
absl::Status RetryUnavailable(Clock::Time deadline, Backoff backoff, const RetryTime& time,
                              const std::function<absl::Status()>& attempt);

}  // namespace routing_replay

#endif  // CLIENT_RETRY_H_
