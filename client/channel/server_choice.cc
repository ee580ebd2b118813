#include "client/channel/server_choice.h"

#include <random>
#include <utility>

namespace routing_replay::client {

uint64_t ServerChoice::AnyBegin() { return std::random_device()(); }

absl::StatusOr<ServerTarget> ServerChoice::Wait(std::chrono::milliseconds timeout) {
  {
    MutexLock lock(mutex_);
    if (!targets_.empty()) return targets_[at_];
  }
  auto targets = ResolveEndpoint(endpoint_, timeout);
  if (!targets.ok()) return targets.status();
  MutexLock lock(mutex_);
  if (targets_.empty()) Take(*std::move(targets));
  return targets_[at_];
}

bool ServerChoice::HasOthers() const {
  MutexLock lock(mutex_);
  return targets_.size() > 1 || (!targets_.empty() && targets_.front().round_robin);
}

void ServerChoice::OnUnavailable(absl::string_view target) {
  LookAgain();
  MutexLock lock(mutex_);
  if (!targets_.empty() && targets_[at_].target == target) at_ = (at_ + 1) % targets_.size();
}

void ServerChoice::LookAgain() {
  auto targets = ResolveEndpoint(endpoint_, std::chrono::milliseconds(0));
  if (!targets.ok()) return;
  MutexLock lock(mutex_);
  if (*targets != targets_) Take(*std::move(targets));
}

void ServerChoice::Take(std::vector<ServerTarget> targets) {
  targets_ = std::move(targets);
  at_ = begin_ % targets_.size();
}

}  // namespace routing_replay::client
