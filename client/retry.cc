#include "client/retry.h"

#include <thread>

namespace routing_replay {

RetryTime RetryTime::Real() {
  return {[] { return Clock::Real().Now(); }, [](Clock::Duration wait) { std::this_thread::sleep_for(wait); }};
}

absl::Status RetryUnavailable(Clock::Time deadline, Backoff backoff, const RetryTime& time,
                              const std::function<absl::Status()>& attempt) {
  while (true) {
    absl::Status status = attempt();
    if (status.code() != absl::StatusCode::kUnavailable) return status;
    const Clock::Duration wait = backoff.Next();
    if (time.now() + wait >= deadline) return status;
    time.sleep(wait);
  }
}

}  // namespace routing_replay
