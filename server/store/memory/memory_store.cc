#include "server/store/memory/memory_store.h"

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/mutex.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/memory/sample.h"
#include "server/store/memory/spiller.h"
#include "server/store/sample_rules.h"
#include "server/store/spill/spill.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {
namespace {

constexpr Producer kProducers[] = {Producer::kRollout, Producer::kTrainer};
// Samples taken from the index at a time, for a list or a release of groups.
constexpr size_t kScanBatch = 1024;
// Estimate of the bytes that an append adds to the state of a sample, if its lists are short.
constexpr int64_t kMetadataRoom = 4 << 10;

// Thread-safe. Methods mean the same as those of Store.
class MemoryRun {
 public:
  // `record`: a reservation of RecordBytes, held as long as anybody holds the run.
  MemoryRun(std::shared_ptr<const RunContext> context, ByteReservation record, HandleFunction handle_of)
      : context_(std::move(context)), record_(std::move(record)), handle_of_(std::move(handle_of)), index_(context_) {}

  // Bytes of the budget for a run without samples.
  static int64_t RecordBytes(const RunInfo& info);

  const RunInfo& info() const { return context_->info; }
  int64_t record_bytes() const { return record_.bytes(); }
  RunState State() const;

  // Adds a sample found at the start, which counts as a use of it. RESOURCE_EXHAUSTED (kOverBudget), ALREADY_EXISTS
  // (kHandleCollision).
  absl::Status Adopt(KeptSample sample);

  // About the most memory that Append charges to the budget in addition to the command's reservation.
  int64_t RoomFor(const AppendCommand& command) const;
  absl::StatusOr<AppendAck> Append(AppendCommand command);
  // Never null. NOT_FOUND (kNoSample).
  absl::StatusOr<std::shared_ptr<MemorySample>> Find(Producer producer, const SampleRef& ref) const;
  absl::StatusOr<ListPage> List(Producer producer, std::optional<GroupRange> groups, size_t limit,
                                absl::string_view page_token) const;

  absl::StatusOr<ReleaseResult> Release(std::optional<Producer> producer, absl::Span<const SampleRef> samples);
  absl::StatusOr<ReleaseResult> ReleaseGroups(std::optional<Producer> producer, GroupRange groups);
  std::unique_ptr<Store::Watch> WatchSample(Producer producer, const SampleRef& ref, std::function<void()> changed);
  // Calls `look` for every sample of both producers; none is locked meanwhile.
  void Visit(const std::function<void(std::shared_ptr<MemorySample>)>& look) const;
  // Removes at most `limit` idle samples.
  int64_t Sweep(int64_t limit);
  void FreeSpace() {
    if (context_->journal != nullptr) context_->journal->FreeSpace();
  }
  // Removes every sample. After that the run rejects new ones.
  ReleaseResult Drop();

 private:
  int64_t HandleOf(const SampleRef& ref) const { return ref.sample.empty() ? ref.handle : handle_of_(ref.sample); }
  ParentRows FindParent(const AppendHeader& header) const;
  // Calls `look` for the producer's samples with ids after `after`, ascending, until `look` returns false or an error.
  absl::Status ForEachAfter(Producer producer, std::string after,
                            const std::function<absl::StatusOr<bool>(MemorySample&)>& look) const;
  // Removes the sample if it is alive and was not used after `unused_since`.
  absl::Status RemoveOne(MemorySample& sample, Clock::Time unused_since, ReleaseResult& result);

  const std::shared_ptr<const RunContext> context_;
  const ByteReservation record_;
  const HandleFunction handle_of_;
  SampleIndex index_;
};

int64_t MemoryRun::RecordBytes(const RunInfo& info) {
  const Geometry& geometry = *info.geometry;
  return static_cast<int64_t>(sizeof(MemoryRun) + sizeof(RunContext) + sizeof(RunContext::Mutexes) + sizeof(WatchList) +
                              sizeof(RunUsage) + sizeof(Geometry) + info.run.size() +
                              geometry.layers().size() * sizeof(LayerRouting) +
                              static_cast<size_t>(geometry.num_layers()) * sizeof(int32_t));
}

RunState MemoryRun::State() const {
  const RunUsage& usage = *context_->usage;
  return {info(), usage.samples, usage.sealed_samples, usage.committed_rows, usage.stored_bytes};
}

absl::Status MemoryRun::Adopt(KeptSample kept) {
  RR_ASSIGN_OR_RETURN(const std::shared_ptr<MemorySample> sample,
                      index_.FindOrInsert(handle_of_(kept.sample), kept.sample, kept.producer, context_->clock.Now()));
  return sample->Adopt(std::move(kept.content));
}

int64_t MemoryRun::RoomFor(const AppendCommand& command) const {
  const auto cost = [this](int64_t rows, Codec codec) { return context_->home->Cost(*info().geometry, rows, codec); };
  // The append may merge a window into one new block, while a reader still holds the old blocks. So a whole window is
  // added to the size of the append's own blocks.
  int64_t bytes = kMetadataRoom + cost(info().options.block_rows, Codec::kRaw);
  for (const Block& block : command.blocks) bytes += cost(block.rows.size(), block.codec);
  return bytes - command.reservation.bytes();
}

absl::StatusOr<AppendAck> MemoryRun::Append(AppendCommand command) {
  RR_RETURN_IF_ERROR(CheckAppend(command.header, command.blocks));
  RR_RETURN_IF_ERROR(CheckBlocks(info(), command));
  const int64_t handle = handle_of_(command.header.sample);
  ParentRows parent = FindParent(command.header);
  for (;;) {
    RR_ASSIGN_OR_RETURN(
        const std::shared_ptr<MemorySample> sample,
        index_.FindOrInsert(handle, command.header.sample, command.header.producer, context_->clock.Now()));
    std::optional<absl::StatusOr<AppendAck>> ack = sample->Append(command, parent);
    if (!ack) {
      std::this_thread::yield();  // Wait until the thread that removed the sample has taken it out of the index.
      continue;
    }
    if (!ack->ok() && sample->RemoveUnborn()) index_.Remove(*sample);
    return *std::move(ack);
  }
}

ParentRows MemoryRun::FindParent(const AppendHeader& header) const {
  if (!header.prefix) return std::nullopt;
  RR_ASSIGN_OR_RETURN(const std::shared_ptr<MemorySample> parent,
                      Find(header.producer, {.sample = header.prefix->sample}));
  return parent->Prefix(*header.prefix);
}

absl::StatusOr<std::shared_ptr<MemorySample>> MemoryRun::Find(Producer producer, const SampleRef& ref) const {
  std::shared_ptr<MemorySample> sample = index_.Find(HandleOf(ref), ref.sample, producer);
  if (sample != nullptr) return sample;
  return NoSampleError(ref.sample.empty() ? absl::StrCat("handle ", ref.handle) : ref.sample);
}

absl::StatusOr<ListPage> MemoryRun::List(Producer producer, std::optional<GroupRange> groups, size_t limit,
                                         absl::string_view page_token) const {
  PageBuilder page(limit);
  RR_RETURN_IF_ERROR(ForEachAfter(producer, std::string(page_token), [&](const MemorySample& sample) {
    absl::StatusOr<SampleState> state = sample.Stat();
    if (!state.ok() || (groups && !groups->contains(state->group))) return true;
    return page.Add(*std::move(state));
  }));
  return page.Take();
}

absl::Status MemoryRun::ForEachAfter(Producer producer, std::string after,
                                     const std::function<absl::StatusOr<bool>(MemorySample&)>& look) const {
  for (;;) {
    const std::vector<std::shared_ptr<MemorySample>> batch = index_.After(producer, after, kScanBatch);
    for (const std::shared_ptr<MemorySample>& sample : batch) {
      RR_ASSIGN_OR_RETURN(const bool more, look(*sample));
      if (!more) return absl::OkStatus();
    }
    if (batch.size() < kScanBatch) return absl::OkStatus();
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
      RR_RETURN_IF_ERROR(RemoveOne(**sample, Clock::Time::max(), result));
    }
  }
  return result;
}

absl::StatusOr<ReleaseResult> MemoryRun::ReleaseGroups(std::optional<Producer> producer, GroupRange groups) {
  ReleaseResult result;
  for (Producer p : kProducers) {
    if (producer && *producer != p) continue;
    RR_RETURN_IF_ERROR(ForEachAfter(p, "", [&](MemorySample& sample) -> absl::StatusOr<bool> {
      const std::optional<int64_t> group = sample.group();
      if (!group || !groups.contains(*group)) return true;
      RR_RETURN_IF_ERROR(RemoveOne(sample, Clock::Time::max(), result));
      return true;
    }));
  }
  return result;
}

std::unique_ptr<Store::Watch> MemoryRun::WatchSample(Producer producer, const SampleRef& ref,
                                                     std::function<void()> changed) {
  return context_->watches->Add(HandleOf(ref), producer, std::move(changed));
}

void MemoryRun::Visit(const std::function<void(std::shared_ptr<MemorySample>)>& look) const {
  for (size_t shard = 0; shard < SampleIndex::kShards; ++shard) {
    for (std::shared_ptr<MemorySample>& sample : index_.OfShard(shard)) look(std::move(sample));
  }
}

int64_t MemoryRun::Sweep(int64_t limit) {
  ReleaseResult result;
  const Clock::Time now = context_->clock.Now();
  for (size_t shard = 0; shard < SampleIndex::kShards && result.samples < limit; ++shard) {
    for (const std::shared_ptr<MemorySample>& sample : index_.FindIdle(shard, now, limit - result.samples)) {
      // A sample that cannot be removed now is found idle again by the next sweep.
      RemoveOne(*sample, now - info().options.ttl, result).IgnoreError();
    }
  }
  return result.samples;
}

ReleaseResult MemoryRun::Drop() {
  ReleaseResult result;
  for (std::shared_ptr<MemorySample>& sample : index_.Close()) {
    sample->RemoveUnborn();  // An append that was about to open it retries, and finds that the run is gone.
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

class MemoryStore final : public Store {
 public:
  MemoryStore(MemoryStoreOptions options, std::shared_ptr<RunKeeper> keeper);
  ~MemoryStore() override;
  absl::Status Adopt(KeptRun run);

  std::string name() const override { return keeper_ == nullptr ? "memory" : keeper_->name(); }
  bool MayWait() const override { return keeper_ != nullptr || spiller_ != nullptr; }
  absl::StatusOr<RunInfo> OpenRun(absl::string_view run, const Geometry* geometry,
                                  const std::optional<RunOptions>& options) override;
  absl::StatusOr<RunInfo> GetRun(absl::string_view run) override {
    const auto found = FindRun(run);
    return found.ok() ? absl::StatusOr<RunInfo>((*found)->info()) : found.status();
  }
  absl::StatusOr<RunState> StatRun(absl::string_view run) override {
    const auto found = FindRun(run);
    return found.ok() ? absl::StatusOr<RunState>((*found)->State()) : found.status();
  }
  absl::StatusOr<RunPage> ListRuns(absl::string_view page_token, size_t limit) override;
  absl::StatusOr<int64_t> CountRuns() override {
    MutexLock lock(mutex_);
    return static_cast<int64_t>(runs_.size());
  }
  absl::StatusOr<ReleaseResult> DropRun(absl::string_view run) override;
  absl::StatusOr<AppendAck> Append(AppendCommand command) override;
  absl::StatusOr<SampleState> Seal(absl::string_view run, Producer producer, absl::string_view sample,
                                   int64_t num_tokens, int64_t revision) override {
    RR_ASSIGN_OR_RETURN(const auto found, FindById(run, producer, sample));
    absl::StatusOr<SampleState> state = found->Seal(num_tokens, revision);
    if (spiller_ != nullptr) spiller_->Look();
    return state;
  }
  absl::StatusOr<SampleState> Truncate(absl::string_view run, Producer producer, absl::string_view sample, int64_t rows,
                                       std::optional<int64_t> expected_revision) override {
    const auto found = FindById(run, producer, sample);
    return found.ok() ? (*found)->Truncate(rows, expected_revision) : found.status();
  }
  absl::StatusOr<SampleSnapshot> Snapshot(absl::string_view run, Producer producer, const SampleRef& sample,
                                          absl::Span<const RowRange> rows, const AdmitSnapshot& admit) override {
    const auto found = FindSample(run, producer, sample);
    return found.ok() ? (*found)->Snapshot(rows, admit) : found.status();
  }
  absl::StatusOr<SampleState> Stat(absl::string_view run, Producer producer, const SampleRef& sample) override {
    const auto found = FindSample(run, producer, sample);
    return found.ok() ? (*found)->Stat() : found.status();
  }
  absl::StatusOr<ListPage> List(absl::string_view run, Producer producer, std::optional<GroupRange> groups,
                                size_t limit, absl::string_view page_token) override {
    const auto found = FindRun(run);
    return found.ok() ? (*found)->List(producer, groups, limit, page_token) : found.status();
  }
  absl::StatusOr<ReleaseResult> Release(absl::string_view run, std::optional<Producer> producer,
                                        absl::Span<const SampleRef> samples) override {
    const auto found = FindRun(run);
    return found.ok() ? (*found)->Release(producer, samples) : found.status();
  }
  absl::StatusOr<ReleaseResult> ReleaseGroups(absl::string_view run, std::optional<Producer> producer,
                                              GroupRange groups) override {
    const auto found = FindRun(run);
    return found.ok() ? (*found)->ReleaseGroups(producer, groups) : found.status();
  }
  absl::StatusOr<std::unique_ptr<Watch>> WatchSample(absl::string_view run, Producer producer, const SampleRef& sample,
                                                     std::function<void()> changed) override {
    RR_ASSIGN_OR_RETURN(const auto found, FindRun(run));
    return found->WatchSample(producer, sample, std::move(changed));
  }
  int64_t Sweep(int64_t limit) override;
  absl::Status Health() override { return keeper_ == nullptr ? absl::OkStatus() : keeper_->Health(); }
  Totals GetTotals() override;
  bool MakeRoom(int64_t bytes) override { return spiller_ != nullptr && spiller_->MakeRoom(bytes); }

 private:
  absl::StatusOr<std::shared_ptr<MemoryRun>> FindRun(absl::string_view run) const;
  absl::StatusOr<std::shared_ptr<MemorySample>> FindSample(absl::string_view run, Producer producer,
                                                           const SampleRef& sample) const {
    const auto found = FindRun(run);
    return found.ok() ? (*found)->Find(producer, sample) : found.status();
  }
  absl::StatusOr<std::shared_ptr<MemorySample>> FindById(absl::string_view run, Producer producer,
                                                         absl::string_view sample) const {
    RR_RETURN_IF_ERROR(CheckId(sample, "sample"));
    return FindSample(run, producer, {.sample = std::string(sample)});
  }
  std::vector<std::shared_ptr<MemoryRun>> AllRuns() const;
  std::shared_ptr<MemoryRun> NewRun(const RunInfo& info, std::shared_ptr<BlockHome> home, ByteReservation record);
  absl::StatusOr<std::shared_ptr<BlockHome>> HomeOf(const RunInfo& info);

  const MemoryStoreOptions options_;
  const std::shared_ptr<RunKeeper> keeper_;  // Null: runs end with the process.
  ContentIds content_ids_;

  // Held while a run is made or dropped, which may wait for a disk; taken before mutex_. Calls that use or join a run
  // do not wait for it.
  Mutex runs_change_;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<MemoryRun>> runs_ ABSL_GUARDED_BY(mutex_);

  // Null without a disk to spill to. Destroyed before the members that it uses.
  const std::unique_ptr<Spiller> spiller_;
};

MemoryStore::MemoryStore(MemoryStoreOptions options, std::shared_ptr<RunKeeper> keeper)
    : options_(std::move(options)),
      keeper_(std::move(keeper)),
      spiller_(options_.spill.disk == nullptr
                   ? nullptr
                   : std::make_unique<Spiller>(options_.spill, *options_.budget, [this](const auto& look) {
                       for (const auto& run : AllRuns()) {
                         run->Visit(look);
                       }
                     })) {}

MemoryStore::~MemoryStore() {
  if (keeper_ != nullptr) keeper_->End();
  for (const std::shared_ptr<MemoryRun>& run : AllRuns()) run->Drop();
}

absl::StatusOr<RunInfo> MemoryStore::OpenRun(absl::string_view run, const Geometry* geometry,
                                             const std::optional<RunOptions>& options) {
  RR_RETURN_IF_ERROR(CheckId(run, "run"));
  if (options) {
    RR_RETURN_IF_ERROR(CheckRunOptions(*options));
  }
  const auto join = [&](const MemoryRun& found) -> absl::StatusOr<RunInfo> {
    RR_RETURN_IF_ERROR(CheckJoin(found.info(), geometry, options));
    return found.info();
  };
  if (const auto found = FindRun(run); found.ok()) return join(**found);
  if (geometry == nullptr) return NoRunError(run);
  MutexLock making(runs_change_);
  if (const auto found = FindRun(run); found.ok()) return join(**found);
  RunInfo info{.run = std::string(run), .geometry = std::make_shared<const Geometry>(*geometry)};
  RR_ASSIGN_OR_RETURN(info.options,
                      OptionsInForce(options, {.ttl = options_.default_ttl, .codec = geometry->default_codec()},
                                     keeper_ != nullptr ? keeper_->durability() : DurabilityLevels()));
  RR_ASSIGN_OR_RETURN(ByteReservation record, ReserveOrMakeRoom(*this, *options_.budget, MemoryRun::RecordBytes(info)));
  RR_ASSIGN_OR_RETURN(std::shared_ptr<BlockHome> home, HomeOf(info));
  const std::shared_ptr<MemoryRun> made = NewRun(info, std::move(home), std::move(record));
  MutexLock lock(mutex_);
  runs_.emplace(info.run, made);
  info.created = true;
  return info;
}

absl::StatusOr<std::shared_ptr<BlockHome>> MemoryStore::HomeOf(const RunInfo& info) {
  if (keeper_ != nullptr) return keeper_->Create(info);
  auto usage = std::make_shared<RunUsage>(*options_.budget);
  if (spiller_ == nullptr) return std::make_shared<MemoryHome>(std::move(usage));
  return std::make_shared<SpillHome>(std::move(usage), info.geometry, spiller_->area());
}

std::shared_ptr<MemoryRun> MemoryStore::NewRun(const RunInfo& info, std::shared_ptr<BlockHome> home,
                                               ByteReservation record) {
  auto context = std::make_shared<const RunContext>(RunContext{.info = info,
                                                               .budget = *options_.budget,
                                                               .clock = *options_.clock,
                                                               .content_ids = content_ids_,
                                                               .home = std::move(home)});
  return std::make_shared<MemoryRun>(std::move(context), std::move(record), options_.handle_of);
}

absl::Status MemoryStore::Adopt(KeptRun kept) {
  RR_ASSIGN_OR_RETURN(ByteReservation record, options_.budget->Reserve(MemoryRun::RecordBytes(kept.info)));
  std::shared_ptr<MemoryRun> run = NewRun(kept.info, std::move(kept.home), std::move(record));
  for (KeptSample& sample : kept.samples) {
    RR_RETURN_IF_ERROR(run->Adopt(std::move(sample)));
  }
  MutexLock lock(mutex_);
  runs_.emplace(kept.info.run, std::move(run));
  return absl::OkStatus();
}

absl::StatusOr<RunPage> MemoryStore::ListRuns(absl::string_view page_token, size_t limit) {
  RunPage page;
  MutexLock lock(mutex_);
  for (auto run = runs_.upper_bound(std::string(page_token)); run != runs_.end(); ++run) {
    if (page.runs.size() == limit) {
      page.next_token = page.runs.back().info.run;
      break;
    }
    page.runs.push_back(run->second->State());
  }
  return page;
}

absl::StatusOr<ReleaseResult> MemoryStore::DropRun(absl::string_view run) {
  absl::StatusOr<std::shared_ptr<MemoryRun>> dropped;
  {
    MutexLock dropping(runs_change_);
    dropped = FindRun(run);
    if (!dropped.ok() && (keeper_ == nullptr || !keeper_->Damaged(run))) return dropped.status();
    if (keeper_ != nullptr) {
      RR_RETURN_IF_ERROR(keeper_->Drop(run));
    }
    if (!dropped.ok()) return ReleaseResult{};  // The contents of a damaged run are not known.
    MutexLock lock(mutex_);
    runs_.erase((*dropped)->info().run);
  }
  return (*dropped)->Drop();
}

absl::StatusOr<AppendAck> MemoryStore::Append(AppendCommand command) {
  RR_ASSIGN_OR_RETURN(const std::shared_ptr<MemoryRun> run, FindRun(command.run));
  if (spiller_ == nullptr) return run->Append(std::move(command));
  spiller_->MakeRoom(run->RoomFor(command));  // If there is still no room, Append returns that error.
  absl::StatusOr<AppendAck> ack = run->Append(std::move(command));
  spiller_->Look();
  return ack;
}

int64_t MemoryStore::Sweep(int64_t limit) {
  int64_t removed = 0;
  for (const std::shared_ptr<MemoryRun>& run : AllRuns()) {
    if (removed < limit) removed += run->Sweep(limit - removed);
    run->FreeSpace();
  }
  return removed;
}

Store::Totals MemoryStore::GetTotals() {
  Totals totals;
  for (const std::shared_ptr<MemoryRun>& run : AllRuns()) {
    const RunState state = run->State();
    ++totals.runs;
    totals.samples += state.samples;
    totals.stored_bytes += state.stored_bytes;
    totals.run_bytes += run->record_bytes();
  }
  if (spiller_ != nullptr) totals.spill = spiller_->GetTotals();
  return totals;
}

absl::StatusOr<std::shared_ptr<MemoryRun>> MemoryStore::FindRun(absl::string_view run) const {
  MutexLock lock(mutex_);
  const auto it = runs_.find(std::string(run));
  if (it == runs_.end()) return NoRunError(run);
  return it->second;
}

std::vector<std::shared_ptr<MemoryRun>> MemoryStore::AllRuns() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<MemoryRun>> runs;
  for (const auto& [name, run] : runs_) runs.push_back(run);
  return runs;
}

}  // namespace

std::unique_ptr<Store> NewMemoryStore(MemoryStoreOptions options) {
  return std::make_unique<MemoryStore>(std::move(options), nullptr);
}

absl::StatusOr<std::unique_ptr<Store>> NewKeptStore(MemoryStoreOptions options,
                                                    const std::shared_ptr<RunKeeper>& keeper,
                                                    std::vector<KeptRun> runs) {
  auto store = std::make_unique<MemoryStore>(std::move(options), keeper);
  for (KeptRun& run : runs) {
    const absl::Status adopted = store->Adopt(std::move(run));
    if (absl::IsResourceExhausted(adopted)) {
      return MakeError(adopted.code(),
                       absl::StrCat("the runs in the store need more memory; start with a larger --memory-budget: ",
                                    adopted.message()),
                       {.reason = Reason::kOverBudget});
    }
    RR_RETURN_IF_ERROR(adopted);
  }
  keeper->Begin();
  return store;
}

}  // namespace routing_replay::server
