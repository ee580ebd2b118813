#include "client/call/retry.h"

#include "client/call/cancellation.h"

namespace routing_replay::client {

namespace {

constexpr Backoff::Options kRetryBackoff{.initial = std::chrono::milliseconds(50), .maximum = std::chrono::seconds(2)};

}  // namespace

RetrySchedule::RetrySchedule(Clock::Time deadline) : RetrySchedule(deadline, Backoff(kRetryBackoff)) {}

std::optional<Clock::Duration> RetrySchedule::WaitAfter(const absl::Status& status, Clock::Time now) {
  if (status.code() != absl::StatusCode::kUnavailable) return std::nullopt;
  const Clock::Duration wait = backoff_.Next();
  if (now + wait >= deadline_) return std::nullopt;
  return wait;
}

RetryTime RetryTime::Real() {
  return {[] { return Clock::Real().Now(); }, [](Clock::Duration wait) { SleepInCall(wait); }};
}

absl::Status RetryUnavailable(RetrySchedule schedule, const RetryTime& time,
                              const std::function<absl::Status()>& attempt) {
  while (true) {
    absl::Status status = attempt();
    const std::optional<Clock::Duration> wait = schedule.WaitAfter(status, time.now());
    if (!wait) return status;
    time.sleep(*wait);
  }
}

}  // namespace routing_replay::client
