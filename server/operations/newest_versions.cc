#include "server/operations/newest_versions.h"

#include <algorithm>

namespace routing_replay::server {

NewestVersions::Run& NewestVersions::Use(absl::string_view run) {
  auto found = runs_.find(run);
  if (found == runs_.end()) {
    if (runs_.size() >= kMostRuns) {
      runs_.erase(std::min_element(runs_.begin(), runs_.end(),
                                   [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
    }
    found = runs_.try_emplace(std::string(run), Run{kUnknownWeightVersion, kUnknownWeightVersion, {}, {}, {}}).first;
  }
  found->second.used = clock_.Now();
  return found->second;
}

void NewestVersions::Put(absl::string_view run, Producer producer, int64_t version) {
  if (version == kUnknownWeightVersion) return;
  const MutexLock lock(mutex_);
  put_ = std::max(put_, version);
  if (producer != Producer::kRollout) return;
  Run& entry = Use(run);
  if (version < entry.put && entry.used - entry.newest_put < kNewestIsOver) return;
  entry.put = version;
  entry.newest_put = entry.used;
}

void NewestVersions::Get(absl::string_view run, Producer producer, int64_t version) {
  if (version == kUnknownWeightVersion) return;
  const MutexLock lock(mutex_);
  get_ = std::max(get_, version);
  if (producer != Producer::kRollout) return;
  Run& entry = Use(run);
  // Not the highest: somebody who reads the whole run once, such as an export, would hide the trainer for ever.
  entry.get = version;
  entry.read = entry.used;
}

void NewestVersions::Drop(absl::string_view run) {
  const MutexLock lock(mutex_);
  const auto found = runs_.find(run);
  if (found != runs_.end()) runs_.erase(found);
}

int64_t NewestVersions::put() const {
  const MutexLock lock(mutex_);
  return put_;
}

int64_t NewestVersions::get() const {
  const MutexLock lock(mutex_);
  return get_;
}

int64_t NewestVersions::lag() const {
  const Clock::Time now = clock_.Now();
  int64_t lag = 0;
  const MutexLock lock(mutex_);
  for (const auto& [name, run] : runs_) {
    if (run.put == kUnknownWeightVersion || run.get == kUnknownWeightVersion) continue;
    if (now - run.read >= kReaderIsGone) continue;
    lag = std::max(lag, run.put - run.get);
  }
  return lag;
}

}  // namespace routing_replay::server
