#include "server/store/memory/run.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {
namespace {

// Samples looked at in one go while filtering by group.
constexpr size_t kScanBatch = 1024;
// What an append may add to what is known of a sample, but for long lists.
constexpr int64_t kMetadataRoom = 4 << 10;
constexpr Producer kProducers[] = {Producer::kRollout, Producer::kTrainer};

}  // namespace

int64_t MemoryRun::RecordBytes(const RunInfo& info) {
  const Geometry& geometry = *info.geometry;
  return static_cast<int64_t>(sizeof(MemoryRun) + sizeof(RunContext) + sizeof(SampleMutexes) + sizeof(WatchList) +
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
    after = std::string(batch.back()->id());
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
      after = std::string(batch.back()->id());
    }
  }
  return result;
}

std::unique_ptr<Store::Watch> MemoryRun::WatchSample(Producer producer, const SampleRef& ref,
                                                     std::function<void()> changed) {
  const int64_t handle = ref.sample.empty() ? ref.handle : handle_of_(ref.sample);
  return context_->watches->Add(handle, producer, ref.sample, std::move(changed));
}

void MemoryRun::Visit(const std::function<void(std::shared_ptr<MemorySample>)>& look) const {
  for (size_t shard = 0; shard < SampleIndex::kShards; ++shard) {
    std::string after;
    for (;;) {
      std::vector<std::shared_ptr<MemorySample>> batch = index_.OfShard(shard, after, kScanBatch);
      if (batch.empty()) break;
      after = std::string(batch.back()->id());
      for (std::shared_ptr<MemorySample>& sample : batch) look(std::move(sample));
    }
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
