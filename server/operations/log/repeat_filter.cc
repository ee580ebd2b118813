#include "server/operations/log/repeat_filter.h"

namespace routing_replay::server {

std::optional<int64_t> RepeatFilter::Pass(const std::string& key) {
  const Clock::Time now = clock_.Now();
  MutexLock lock(mutex_);
  const auto [found, first] = entries_.try_emplace(key, Entry{now + interval_});
  if (first) return 0;
  Entry& entry = found->second;
  if (now < entry.next) {
    ++entry.held_back;
    return std::nullopt;
  }
  entry.next = now + interval_;
  return std::exchange(entry.held_back, 0);
}

std::vector<std::pair<std::string, int64_t>> RepeatFilter::TakeHeldBack() {
  const Clock::Time now = clock_.Now();
  std::vector<std::pair<std::string, int64_t>> taken;
  MutexLock lock(mutex_);
  for (auto& [key, entry] : entries_) {
    if (entry.held_back == 0 || now < entry.next) continue;
    taken.emplace_back(key, std::exchange(entry.held_back, 0));
    entry.next = now + interval_;
  }
  return taken;
}

}  // namespace routing_replay::server
