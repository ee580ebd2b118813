#include "server/store/memory/sample_index.h"

#include <algorithm>
#include <thread>

#include "server/store/store_errors.h"

namespace routing_replay {
namespace {

bool AnyAlive(const std::vector<std::shared_ptr<MemorySample>>& samples) {
  return std::any_of(samples.begin(), samples.end(), [](const auto& sample) { return sample->alive(); });
}

}  // namespace

std::shared_ptr<MemorySample> SampleIndex::Find(int64_t handle, absl::string_view id, Producer producer) const {
  const Shard& shard = ShardOf(handle);
  MutexLock lock(shard.mutex);
  const auto it = shard.by_handle.find(handle);
  if (it == shard.by_handle.end()) return nullptr;
  const auto& [slot_id, slot] = *it->second;
  if (!id.empty() && id != slot_id) return nullptr;
  return slot.entries[IndexOf(producer)].sample;
}

absl::StatusOr<std::shared_ptr<MemorySample>> SampleIndex::FindOrInsert(int64_t handle, const std::string& id,
                                                                        Producer producer, Clock::Time last_used) {
  Shard& shard = ShardOf(handle);
  for (;;) {
    std::string other;
    std::vector<std::shared_ptr<MemorySample>> others;
    {
      MutexLock lock(shard.mutex);
      if (shard.closed) return NoRunError(run_->info.run);
      const auto it = shard.by_handle.find(handle);
      if (it == shard.by_handle.end() || it->second->first == id) {
        return Insert(shard, handle, id, producer, last_used);
      }
      other = it->second->first;
      for (const Entry& entry : it->second->second.entries) {
        if (entry.sample != nullptr) others.push_back(entry.sample);
      }
    }
    // alive() waits for an append that is opening the other sample. If that one is refused, the handle is free.
    if (AnyAlive(others)) return HandleCollisionError(id, other);
    std::this_thread::yield();
  }
}

std::shared_ptr<MemorySample> SampleIndex::Insert(Shard& shard, int64_t handle, const std::string& id,
                                                  Producer producer, Clock::Time last_used) {
  const auto slot = shard.slots.try_emplace(id).first;
  slot->second.handle = handle;
  shard.by_handle.emplace(handle, slot);
  Entry& entry = slot->second.entries[IndexOf(producer)];
  if (entry.sample == nullptr) {
    entry.sample = std::make_shared<MemorySample>(run_, id, handle, producer, last_used);
    entry.due = last_used + run_->info.options.ttl;
    shard.due.emplace(Due{entry.due, entry.sample.get()}, &entry);
  }
  return entry.sample;
}

void SampleIndex::Remove(const MemorySample& sample) {
  Shard& shard = ShardOf(sample.handle());
  std::shared_ptr<MemorySample> removed;  // Outlives the lock.
  MutexLock lock(shard.mutex);
  const auto slot = shard.slots.find(sample.id());
  if (slot == shard.slots.end()) return;
  Entry& entry = slot->second.entries[IndexOf(sample.producer())];
  if (entry.sample.get() != &sample) return;
  shard.due.erase({entry.due, &sample});
  removed = std::move(entry.sample);
  entry.sample = nullptr;
  if (!slot->second.empty()) return;
  shard.by_handle.erase(slot->second.handle);
  shard.slots.erase(slot);
}

std::vector<std::shared_ptr<MemorySample>> SampleIndex::After(Producer producer, absl::string_view id,
                                                              size_t limit) const {
  std::vector<std::shared_ptr<MemorySample>> found;
  const auto by_id = [](const auto& a, const auto& b) { return a->id() < b->id(); };
  for (const Shard& shard : shards_) {
    const size_t middle = found.size();
    MutexLock lock(shard.mutex);
    auto it = shard.slots.upper_bound(std::string(id));
    for (; it != shard.slots.end() && found.size() - middle < limit; ++it) {
      const std::shared_ptr<MemorySample>& sample = it->second.entries[IndexOf(producer)].sample;
      if (sample != nullptr) found.push_back(sample);
    }
    std::inplace_merge(found.begin(), found.begin() + middle, found.end(), by_id);
    if (found.size() > limit) found.resize(limit);
  }
  return found;
}

std::vector<std::shared_ptr<MemorySample>> SampleIndex::OfShard(size_t shard_index, absl::string_view id,
                                                                size_t limit) const {
  std::vector<std::shared_ptr<MemorySample>> found;
  const Shard& shard = shards_[shard_index];
  MutexLock lock(shard.mutex);
  for (auto it = shard.slots.upper_bound(std::string(id)); it != shard.slots.end() && limit > 0; ++it, --limit) {
    for (const Entry& entry : it->second.entries) {
      if (entry.sample != nullptr) found.push_back(entry.sample);
    }
  }
  return found;
}

SampleIndex::Looked SampleIndex::FindIdle(size_t shard_index, Clock::Time now, int64_t limit) {
  Shard& shard = shards_[shard_index];
  const Clock::Duration ttl = run_->info.options.ttl;
  Looked looked;
  MutexLock lock(shard.mutex);
  // A sample that was used since it was queued goes back with its new time, once per TTL.
  for (auto it = shard.due.begin(); it != shard.due.end() && it->first.first <= now;) {
    Entry& entry = *it->second;
    const Clock::Time due = entry.sample->last_used() + ttl;
    if (due <= now) {
      if (static_cast<int64_t>(looked.idle.size()) == limit) break;
      looked.idle.push_back(entry.sample);
      ++it;
      continue;
    }
    looked.used.push_back(entry.sample);
    it = shard.due.erase(it);
    entry.due = due;
    shard.due.emplace(Due{due, entry.sample.get()}, &entry);
  }
  return looked;
}

std::vector<std::shared_ptr<MemorySample>> SampleIndex::Close() {
  std::vector<std::shared_ptr<MemorySample>> all;
  for (Shard& shard : shards_) {
    Slots slots;  // Destroyed after the lock is gone.
    MutexLock lock(shard.mutex);
    shard.closed = true;
    slots.swap(shard.slots);
    shard.by_handle.clear();
    shard.due.clear();
    for (auto& [id, slot] : slots) {
      for (Entry& entry : slot.entries) {
        if (entry.sample != nullptr) all.push_back(std::move(entry.sample));
      }
    }
  }
  return all;
}

}  // namespace routing_replay
