#include "server/operations/readiness.h"

#include "absl/strings/str_cat.h"

namespace routing_replay::server {

void Readiness::Change(const std::function<void()>& change) {
  MutexLock lock(mutex_);
  const absl::Status before = Verdict();
  change();
  const absl::Status after = Verdict();
  if (changed_ && before != after) changed_(after);
}

absl::Status Readiness::Verdict() const {
  if (draining_) return absl::UnavailableError("draining");
  if (starting_) return absl::UnavailableError(kStarting);
  if (!listener_.ok()) return absl::UnavailableError(listener_.message());
  if (store_.ok()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("store: ", absl::StatusCodeToString(store_.code()), ": ", store_.message()));
}

}  // namespace routing_replay::server
