#include "server/store/memory/sample_index.h"

#include <algorithm>
#include <thread>

#include "server/store/store_rules.h"

namespace routing_replay::server {
namespace {

constexpr Producer kProducers[] = {Producer::kRollout, Producer::kTrainer};

bool AnyAlive(const std::vector<std::shared_ptr<MemorySample>>& samples) {
  return std::any_of(samples.begin(), samples.end(), [](const auto& sample) { return sample->alive(); });
}

}  // namespace

std::shared_ptr<MemorySample> SampleIndex::FindIn(const Shard& shard, const HandleKey& key) {
  const auto it = shard.by_handle.find(key);
  return it == shard.by_handle.end() ? nullptr : *it;
}

std::shared_ptr<MemorySample> SampleIndex::Find(int64_t handle, absl::string_view id, Producer producer) const {
  const Shard& shard = ShardOf(handle);
  MutexLock lock(shard.mutex);
  std::shared_ptr<MemorySample> sample = FindIn(shard, {handle, producer});
  if (sample != nullptr && !id.empty() && id != sample->id()) return nullptr;
  return sample;
}

absl::StatusOr<std::shared_ptr<MemorySample>> SampleIndex::FindOrInsert(int64_t handle, const std::string& id,
                                                                        Producer producer, Clock::Time last_used) {
  Shard& shard = ShardOf(handle);
  for (;;) {
    std::vector<std::shared_ptr<MemorySample>> others;
    {
      MutexLock lock(shard.mutex);
      if (shard.closed) return NoRunError(run_->info.run);
      for (Producer p : kProducers) {
        std::shared_ptr<MemorySample> sample = FindIn(shard, {handle, p});
        if (sample == nullptr) continue;
        if (sample->id() != id) {
          others.push_back(std::move(sample));
        } else if (p == producer) {
          return sample;
        }
      }
      if (others.empty()) return Insert(shard, handle, id, producer, last_used);
    }
    // alive() waits for an append that is opening the other sample. If that one is refused, the handle is free.
    if (AnyAlive(others)) return HandleCollisionError(id, others.front()->id());
    std::this_thread::yield();
  }
}

std::shared_ptr<MemorySample> SampleIndex::Insert(Shard& shard, int64_t handle, const std::string& id,
                                                  Producer producer, Clock::Time last_used) {
  auto sample = std::make_shared<MemorySample>(run_, id, handle, producer, last_used);
  sample->set_due(last_used + run_->info.options.ttl);
  shard.by_handle.insert(sample);
  shard.by_id.insert(sample.get());
  shard.by_due.insert(sample.get());
  return sample;
}

void SampleIndex::Remove(const MemorySample& sample) {
  Shard& shard = ShardOf(sample.handle());
  std::shared_ptr<MemorySample> removed;  // Outlives the lock.
  MutexLock lock(shard.mutex);
  const auto it = shard.by_handle.find(HandleKey{sample.handle(), sample.producer()});
  if (it == shard.by_handle.end() || it->get() != &sample) return;
  removed = *it;
  shard.by_due.erase(removed.get());
  shard.by_id.erase(removed.get());
  shard.by_handle.erase(it);
}

std::vector<std::shared_ptr<MemorySample>> SampleIndex::After(Producer producer, absl::string_view id,
                                                              size_t limit) const {
  std::vector<std::shared_ptr<MemorySample>> found;
  const auto by_id = [](const auto& a, const auto& b) { return a->id() < b->id(); };
  for (const Shard& shard : shards_) {
    const size_t middle = found.size();
    MutexLock lock(shard.mutex);
    auto it = shard.by_id.upper_bound(id);
    for (; it != shard.by_id.end() && found.size() - middle < limit; ++it) {
      if ((*it)->producer() != producer) continue;
      if (middle == limit && (*it)->id() > found[limit - 1]->id()) break;  // Nor do those behind it come in.
      found.push_back(FindIn(shard, {(*it)->handle(), producer}));
    }
    std::inplace_merge(found.begin(), found.begin() + static_cast<int64_t>(middle), found.end(), by_id);
    if (found.size() > limit) found.resize(limit);
  }
  return found;
}

std::vector<std::shared_ptr<MemorySample>> SampleIndex::OfShard(size_t shard_index, absl::string_view id,
                                                                size_t limit) const {
  std::vector<std::shared_ptr<MemorySample>> found;
  const Shard& shard = shards_[shard_index];
  MutexLock lock(shard.mutex);
  for (auto it = shard.by_id.upper_bound(id); it != shard.by_id.end(); ++it) {
    if (found.size() >= limit && (*it)->id() != found.back()->id()) break;
    found.push_back(FindIn(shard, {(*it)->handle(), (*it)->producer()}));
  }
  return found;
}

SampleIndex::Looked SampleIndex::FindIdle(size_t shard_index, Clock::Time now, int64_t limit) {
  Shard& shard = shards_[shard_index];
  const Clock::Duration ttl = run_->info.options.ttl;
  Looked looked;
  MutexLock lock(shard.mutex);
  for (const MemorySample* due : shard.by_due) {
    if (due->due() > now) break;
    std::shared_ptr<MemorySample> sample = FindIn(shard, {due->handle(), due->producer()});
    const bool idle = sample->last_used() + ttl <= now;
    if (idle && static_cast<int64_t>(looked.idle.size()) == limit) break;
    (idle ? looked.idle : looked.used).push_back(std::move(sample));
  }
  // A sample that was used since it was queued goes back with its new time, once per TTL.
  for (const std::shared_ptr<MemorySample>& sample : looked.used) {
    shard.by_due.erase(sample.get());
    sample->set_due(sample->last_used() + ttl);
    shard.by_due.insert(sample.get());
  }
  return looked;
}

std::vector<std::shared_ptr<MemorySample>> SampleIndex::Close() {
  std::vector<std::shared_ptr<MemorySample>> all;
  for (Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    shard.closed = true;
    all.insert(all.end(), shard.by_handle.begin(), shard.by_handle.end());
    shard.by_handle = {};
    shard.by_id.clear();
    shard.by_due.clear();
  }
  // A million samples are freed several times as fast in the order in which they lie in memory.
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace routing_replay::server
