#include "client/shard/places.h"

#include <utility>

namespace routing_replay {

std::optional<size_t> Places::Find(Producer producer, int64_t handle) {
  const uint64_t key = Key(producer, handle);
  MutexLock lock(mutex_);
  if (const auto found = newer_.find(key); found != newer_.end()) return found->second;
  const auto found = older_.find(key);
  if (found == older_.end()) return std::nullopt;
  const uint32_t member = found->second;
  Insert(key, member);
  return member;
}

size_t Places::FindOrNatural(Producer producer, int64_t handle) {
  const std::optional<size_t> known = Find(producer, handle);
  return known ? *known : members_.NaturalOwner(handle);
}

void Places::Remember(Producer producer, int64_t handle, size_t member) {
  MutexLock lock(mutex_);
  Insert(Key(producer, handle), static_cast<uint32_t>(member));
}

void Places::Forget(Producer producer, int64_t handle) {
  const uint64_t key = Key(producer, handle);
  MutexLock lock(mutex_);
  newer_.erase(key);
  older_.erase(key);
}

void Places::Insert(uint64_t key, uint32_t member) {
  if (newer_.size() >= half_) {
    older_ = std::move(newer_);
    newer_.clear();
  }
  newer_[key] = member;
}

}  // namespace routing_replay
