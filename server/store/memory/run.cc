#include "server/store/memory/run.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {
namespace {

constexpr Producer kProducers[] = {Producer::kRollout, Producer::kTrainer};

bool AnyAlive(const std::vector<std::shared_ptr<MemorySample>>& samples) {
  return std::any_of(samples.begin(), samples.end(), [](const auto& sample) { return sample->alive(); });
}

// Samples looked at in one go while filtering by group.
constexpr size_t kScanBatch = 1024;
// What an append may add to what is known of a sample, but for long lists.
constexpr int64_t kMetadataRoom = 4 << 10;

}  // namespace

std::shared_ptr<MemorySample> SampleIndex::FindIn(const Shard& shard, const HandleKey& key) {
  const auto it = shard.by_handle.find(key);
  return it == shard.by_handle.end() ? nullptr : it->second;
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
    // alive() waits for an append that is opening the other sample. If that one is rejected, the handle is free.
    if (AnyAlive(others)) return HandleCollisionError(id, others.front()->id());
    std::this_thread::yield();
  }
}

std::shared_ptr<MemorySample> SampleIndex::Insert(Shard& shard, int64_t handle, const std::string& id,
                                                  Producer producer, Clock::Time last_used) {
  auto sample = std::make_shared<MemorySample>(run_, id, handle, producer, last_used);
  sample->set_due(last_used + run_->info.options.ttl);
  shard.by_handle.emplace(HandleKey{handle, producer}, sample);
  shard.by_id.insert(sample.get());
  shard.by_due.insert(sample.get());
  return sample;
}

void SampleIndex::Remove(const MemorySample& sample) {
  Shard& shard = ShardOf(sample.handle());
  std::shared_ptr<MemorySample> removed;  // Outlives the lock.
  MutexLock lock(shard.mutex);
  const auto it = shard.by_handle.find(HandleKey{sample.handle(), sample.producer()});
  if (it == shard.by_handle.end() || it->second.get() != &sample) return;
  removed = it->second;
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

std::vector<std::shared_ptr<MemorySample>> SampleIndex::OfShard(size_t shard_index) const {
  std::vector<std::shared_ptr<MemorySample>> all;
  const Shard& shard = shards_[shard_index];
  MutexLock lock(shard.mutex);
  all.reserve(shard.by_handle.size());
  for (const auto& [key, sample] : shard.by_handle) all.push_back(sample);
  return all;
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
    for (auto& [key, sample] : shard.by_handle) all.push_back(std::move(sample));
    shard.by_handle = {};
    shard.by_id.clear();
    shard.by_due.clear();
  }
  // A million samples are freed several times as fast in the order in which they lie in memory.
  std::sort(all.begin(), all.end());
  return all;
}

int64_t MemoryRun::RecordBytes(const RunInfo& info) {
  const Geometry& geometry = *info.geometry;
  return static_cast<int64_t>(sizeof(MemoryRun) + sizeof(RunContext) + sizeof(RunContext::Mutexes) + sizeof(WatchList) +
                              sizeof(RunUsage) + sizeof(Geometry) + info.run.size() +
                              geometry.layers().size() * sizeof(LayerRouting) + geometry.offset_bytes() +
                              static_cast<size_t>(geometry.num_layers()) * sizeof(int32_t));
}

RunState MemoryRun::State() const {
  const RunUsage& usage = *context_->usage;
  return {info(), usage.samples, usage.sealed_samples, usage.committed_rows, usage.stored_bytes};
}

absl::Status MemoryRun::Adopt(KeptSample kept) {
  // Its last use may have been written a TTL late, or not yet.
  const Clock::Duration idle = std::max(kept.idle - info().options.ttl, Clock::Duration::zero());
  absl::StatusOr<std::shared_ptr<MemorySample>> sample =
      index_.FindOrInsert(handle_of_(kept.sample), kept.sample, kept.producer, context_->clock.Now() - idle);
  if (!sample.ok()) return sample.status();
  return (*sample)->Adopt(std::move(kept.content));
}

int64_t MemoryRun::RoomFor(const AppendCommand& command) const {
  const auto cost = [this](int64_t rows, Codec codec) { return context_->home->Cost(*info().geometry, rows, codec); };
  int64_t bytes = kMetadataRoom + cost(info().options.block_rows, Codec::kRaw);  // A window that a reader holds.
  for (const Block& block : command.blocks) bytes += cost(block.rows.size(), block.codec);
  return bytes - command.reservation.bytes();
}

absl::StatusOr<AppendAck> MemoryRun::Append(AppendCommand command) {
  if (absl::Status status = CheckAppend(command.header, command.blocks); !status.ok()) return status;
  if (absl::Status status = CheckBlocks(info(), command); !status.ok()) return status;
  const int64_t handle = handle_of_(command.header.sample);
  ParentRows parent = FindParent(command.header);
  for (;;) {
    absl::StatusOr<std::shared_ptr<MemorySample>> sample =
        index_.FindOrInsert(handle, command.header.sample, command.header.producer, context_->clock.Now());
    if (!sample.ok()) return sample.status();
    std::optional<absl::StatusOr<AppendAck>> ack = (*sample)->Append(command, parent);
    if (!ack) {
      std::this_thread::yield();  // Until whoever ended it has taken it out of the index.
      continue;
    }
    if (!ack->ok() && (*sample)->RemoveUnborn()) index_.Remove(**sample);
    return *std::move(ack);
  }
}

ParentRows MemoryRun::FindParent(const AppendHeader& header) const {
  if (!header.prefix) return std::nullopt;
  const absl::StatusOr<std::shared_ptr<MemorySample>> parent = Find(header.producer, {.sample = header.prefix->sample});
  if (!parent.ok()) return parent.status();
  return (*parent)->Prefix(*header.prefix);
}

absl::StatusOr<std::shared_ptr<MemorySample>> MemoryRun::Find(Producer producer, const SampleRef& ref) const {
  const int64_t handle = ref.sample.empty() ? ref.handle : handle_of_(ref.sample);
  std::shared_ptr<MemorySample> sample = index_.Find(handle, ref.sample, producer);
  if (sample != nullptr) return sample;
  return NoSampleError(ref.sample.empty() ? absl::StrCat("handle ", ref.handle) : ref.sample);
}

absl::StatusOr<ListPage> MemoryRun::List(Producer producer, std::optional<GroupRange> groups, int32_t page_size,
                                         absl::string_view page_token) const {
  const absl::StatusOr<size_t> limit = PageLimit(page_size);
  if (!limit.ok()) return limit.status();
  PageBuilder page(*limit);
  std::string after(page_token);
  for (;;) {
    const std::vector<std::shared_ptr<MemorySample>> batch = index_.After(producer, after, kScanBatch);
    for (const std::shared_ptr<MemorySample>& sample : batch) {
      absl::StatusOr<SampleState> state = sample->Stat();
      if (!state.ok() || (groups && !groups->contains(state->group))) continue;
      if (!page.Add(*std::move(state))) return page.Take();
    }
    if (batch.size() < kScanBatch) return page.Take();
    after = batch.back()->id();
  }
}

absl::Status MemoryRun::RemoveOne(MemorySample& sample, Clock::Time unused_since, ReleaseResult& result) {
  absl::StatusOr<std::optional<MemorySample::Remains>> remains = sample.Remove(unused_since);
  if (!remains.ok() || !*remains) return remains.status();
  index_.Remove(sample);
  ++result.samples;
  result.bytes += (*remains)->Free();
  sample.Notify();
  return absl::OkStatus();
}

absl::StatusOr<ReleaseResult> MemoryRun::Release(std::optional<Producer> producer,
                                                 absl::Span<const SampleRef> samples) {
  ReleaseResult result;
  for (const SampleRef& ref : samples) {
    for (Producer p : kProducers) {
      if (producer && *producer != p) continue;
      const auto sample = Find(p, ref);
      if (!sample.ok()) continue;
      if (absl::Status status = RemoveOne(**sample, Clock::Time::max(), result); !status.ok()) return status;
    }
  }
  return result;
}

absl::StatusOr<ReleaseResult> MemoryRun::ReleaseGroups(std::optional<Producer> producer, GroupRange groups) {
  ReleaseResult result;
  for (Producer p : kProducers) {
    if (producer && *producer != p) continue;
    std::string after;
    for (;;) {
      const std::vector<std::shared_ptr<MemorySample>> batch = index_.After(p, after, kScanBatch);
      for (const std::shared_ptr<MemorySample>& sample : batch) {
        const std::optional<int64_t> group = sample->group();
        if (!group || !groups.contains(*group)) continue;
        if (absl::Status status = RemoveOne(*sample, Clock::Time::max(), result); !status.ok()) return status;
      }
      if (batch.size() < kScanBatch) break;
      after = batch.back()->id();
    }
  }
  return result;
}

std::unique_ptr<Store::Watch> MemoryRun::WatchSample(Producer producer, const SampleRef& ref,
                                                     std::function<void()> changed) {
  const int64_t handle = ref.sample.empty() ? ref.handle : handle_of_(ref.sample);
  return context_->watches->Add(handle, producer, std::move(changed));
}

void MemoryRun::Visit(const std::function<void(std::shared_ptr<MemorySample>)>& look) const {
  for (size_t shard = 0; shard < SampleIndex::kShards; ++shard) {
    for (std::shared_ptr<MemorySample>& sample : index_.OfShard(shard)) look(std::move(sample));
  }
}

int64_t MemoryRun::Sweep(size_t shard, int64_t limit) {
  ReleaseResult result;
  const Clock::Time now = context_->clock.Now();
  const SampleIndex::Looked looked = index_.FindIdle(shard, now, limit);
  // A use that cannot be written down counts from now on all the same, as long as this process lives.
  for (const std::shared_ptr<MemorySample>& sample : looked.used) sample->NoteUse().IgnoreError();
  for (const std::shared_ptr<MemorySample>& sample : looked.idle) {
    // One that cannot be removed now is idle the next time, too.
    RemoveOne(*sample, now - info().options.ttl, result).IgnoreError();
  }
  return result.samples;
}

ReleaseResult MemoryRun::Drop() {
  ReleaseResult result;
  for (std::shared_ptr<MemorySample>& sample : index_.Close()) {
    sample->RemoveUnborn();  // An append that is about to open it looks again, and finds no run.
    if (std::optional<MemorySample::Remains> remains = sample->End()) {
      ++result.samples;
      result.bytes += remains->Free();
      sample->Notify();
    }
    sample.reset();
  }
  context_->watches->NotifyAll();
  return result;
}

}  // namespace routing_replay::server
