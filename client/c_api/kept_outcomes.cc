#include "client/c_api/kept_outcomes.h"

#include <iterator>

#include "client/call/cancellation.h"

namespace routing_replay::c_api {

void KeptOutcomes::Put(std::vector<AppendOutcome> outcomes, std::function<void()> seen) {
  {
    MutexLock lock(mutex_);
    if (!dismissed_) {
      std::move(outcomes.begin(), outcomes.end(), std::back_inserter(outcomes_));
      waiting_.push_back(std::move(seen));
      return changed_.NotifyAll();
    }
  }
  seen();
}

absl::StatusOr<std::vector<AppendOutcome>> KeptOutcomes::Take(Clock::Time deadline) {
  Seen before;
  {
    MutexLock lock(mutex_);
    before = std::exchange(taken_, {});
  }
  for (const std::function<void()>& seen : before) seen();
  const client::OnCancel wake([this] {
    MutexLock lock(mutex_);
    changed_.NotifyAll();
  });
  MutexLock lock(mutex_);
  while (outcomes_.empty() && !closed_) {
    if (absl::Status status = client::CheckCall(); !status.ok()) return status;
    if (Clock::Real().Now() >= deadline) return absl::DeadlineExceededError("there is no outcome yet");
    changed_.WaitUntil(mutex_, deadline);
  }
  taken_ = std::exchange(waiting_, {});
  return std::exchange(outcomes_, {});
}

void KeptOutcomes::BeginAnew() {
  MutexLock lock(mutex_);
  outcomes_.clear();
  waiting_.clear();
  taken_.clear();
}

void KeptOutcomes::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  changed_.NotifyAll();
}

void KeptOutcomes::Dismiss() {
  Seen all;
  {
    MutexLock lock(mutex_);
    closed_ = dismissed_ = true;
    outcomes_.clear();
    all = std::exchange(taken_, {});
    std::move(waiting_.begin(), waiting_.end(), std::back_inserter(all));
    waiting_.clear();
    changed_.NotifyAll();
  }
  for (const std::function<void()>& seen : all) seen();
}

}  // namespace routing_replay::c_api
