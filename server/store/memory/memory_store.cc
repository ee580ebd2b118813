#include "server/store/memory/memory_store.h"

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/human.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/memory/run.h"
#include "server/store/memory/spiller.h"
#include "server/store/sample/sample_rules.h"
#include "server/store/spill/spill_home.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {

namespace {

constexpr double kTenths = 10;

// Of the budget, for a sample that is not in the index yet. Blocks that samples share count for each until one has
// paid.
int64_t Unpaid(const KeptSample& sample) {
  int64_t bytes = sample.content.metadata_bytes();
  for (const RowPiece& piece : sample.content.pieces.all()) bytes += piece.stored->charged() ? 0 : piece.stored->cost();
  return bytes;
}

class MemoryStore final : public Store {
 public:
  MemoryStore(MemoryStoreOptions options, std::shared_ptr<RunKeeper> keeper);
  ~MemoryStore() override;
  // Takes in what the budget has room for, and returns OK where that is not all.
  absl::Status Adopt(KeptRun run);
  // RESOURCE_EXHAUSTED if anything was left out.
  absl::Status CheckAdopted() const;

  std::string name() const override { return keeper_ == nullptr ? "memory" : keeper_->name(); }
  bool MayWait() const override { return keeper_ != nullptr || spiller_ != nullptr; }
  absl::StatusOr<RunInfo> OpenRun(absl::string_view run, const Geometry* geometry,
                                  const std::optional<RunOptions>& options) override;
  absl::StatusOr<RunInfo> GetRun(absl::string_view run) override;
  absl::StatusOr<RunState> StatRun(absl::string_view run) override;
  absl::StatusOr<RunPage> ListRuns(absl::string_view page_token, size_t limit) override;
  absl::StatusOr<int64_t> CountRuns() override;
  absl::StatusOr<ReleaseResult> DropRun(absl::string_view run) override;
  absl::StatusOr<AppendAck> Append(AppendCommand command) override;
  absl::StatusOr<SampleState> Seal(absl::string_view run, Producer producer, absl::string_view sample,
                                   int64_t num_tokens, int64_t revision) override;
  absl::StatusOr<SampleState> Truncate(absl::string_view run, Producer producer, absl::string_view sample, int64_t rows,
                                       std::optional<int64_t> expected_revision) override;
  absl::StatusOr<SampleSnapshot> Snapshot(absl::string_view run, Producer producer, const SampleRef& sample,
                                          absl::Span<const RowRange> rows, const AdmitSnapshot& admit) override;
  absl::StatusOr<SampleState> Stat(absl::string_view run, Producer producer, const SampleRef& sample) override;
  absl::StatusOr<ListPage> List(absl::string_view run, Producer producer, std::optional<GroupRange> groups,
                                int32_t page_size, absl::string_view page_token) override;
  absl::StatusOr<ReleaseResult> Release(absl::string_view run, std::optional<Producer> producer,
                                        absl::Span<const SampleRef> samples) override;
  absl::StatusOr<ReleaseResult> ReleaseGroups(absl::string_view run, std::optional<Producer> producer,
                                              GroupRange groups) override;
  absl::StatusOr<std::unique_ptr<Watch>> WatchSample(absl::string_view run, Producer producer, const SampleRef& sample,
                                                     std::function<void()> changed) override;
  int64_t Sweep(int64_t limit) override;
  absl::Status Health() override { return keeper_ == nullptr ? absl::OkStatus() : keeper_->Health(); }
  Totals GetTotals() override;
  bool MakeRoom(int64_t bytes) override { return spiller_ != nullptr && spiller_->MakeRoom(bytes); }

 private:
  absl::StatusOr<std::shared_ptr<MemoryRun>> FindRun(absl::string_view run) const;
  absl::StatusOr<std::shared_ptr<MemorySample>> FindSample(absl::string_view run, Producer producer,
                                                           const SampleRef& sample) const;
  absl::StatusOr<std::shared_ptr<MemorySample>> FindById(absl::string_view run, Producer producer,
                                                         absl::string_view sample) const;
  std::vector<std::shared_ptr<MemoryRun>> AllRuns() const;
  std::shared_ptr<MemoryRun> NewRun(const RunInfo& info, RunStorage storage, ByteReservation record);
  absl::StatusOr<RunStorage> StorageOf(const RunInfo& info);

  const MemoryStoreOptions options_;
  const std::shared_ptr<RunKeeper> keeper_;  // None: runs end with the process.
  int64_t over_budget_ = 0;                  // Of what was to be adopted. Written before the store is shared.
  ContentIds content_ids_;

  // Held while a run is made or dropped, which may wait for a disk; taken before mutex_. Whoever uses a run, or joins
  // one, does not wait for it.
  Mutex runs_change_;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<MemoryRun>> runs_ ABSL_GUARDED_BY(mutex_);
  size_t sweep_start_ ABSL_GUARDED_BY(mutex_) = 0;

  const std::unique_ptr<Spiller> spiller_;  // Null where there is no disk to spill to. Ends before what it looks at.
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
  if (absl::Status status = CheckId(run, "run"); !status.ok()) return status;
  if (options) {
    if (absl::Status status = CheckRunOptions(*options); !status.ok()) return status;
  }
  const auto join = [&](const MemoryRun& found) -> absl::StatusOr<RunInfo> {
    if (absl::Status status = CheckJoin(found.info(), geometry, options); !status.ok()) return status;
    return found.info();
  };
  if (const auto found = FindRun(run); found.ok()) return join(**found);
  if (geometry == nullptr) return NoRunError(run);
  MutexLock making(runs_change_);
  if (const auto found = FindRun(run); found.ok()) return join(**found);
  RunInfo info{.run = std::string(run), .geometry = std::make_shared<const Geometry>(*geometry)};
  const absl::StatusOr<RunOptions> in_force =
      OptionsInForce(options, {.ttl = options_.default_ttl, .codec = geometry->default_codec()},
                     keeper_ != nullptr ? keeper_->durability() : DurabilityLevels());
  if (!in_force.ok()) return in_force.status();
  info.options = *in_force;
  absl::StatusOr<ByteReservation> record = ReserveOrMakeRoom(*this, *options_.budget, MemoryRun::RecordBytes(info));
  if (!record.ok()) return record.status();
  absl::StatusOr<RunStorage> storage = StorageOf(info);
  if (!storage.ok()) return storage.status();
  const std::shared_ptr<MemoryRun> made = NewRun(info, *std::move(storage), *std::move(record));
  MutexLock lock(mutex_);
  runs_.emplace(info.run, made);
  info.created = true;
  return info;
}

absl::StatusOr<RunStorage> MemoryStore::StorageOf(const RunInfo& info) {
  if (keeper_ != nullptr) return keeper_->Create(info);
  auto usage = std::make_shared<RunUsage>(*options_.budget);
  if (spiller_ == nullptr) return RunStorage{.home = std::make_shared<MemoryHome>(std::move(usage))};
  return RunStorage{.home = std::make_shared<SpillHome>(std::move(usage), info.geometry, spiller_->area())};
}

std::shared_ptr<MemoryRun> MemoryStore::NewRun(const RunInfo& info, RunStorage storage, ByteReservation record) {
  auto context = std::make_shared<const RunContext>(RunContext{.info = info,
                                                               .budget = *options_.budget,
                                                               .clock = *options_.clock,
                                                               .content_ids = content_ids_,
                                                               .home = std::move(storage.home),
                                                               .journal = std::move(storage.journal)});
  return std::make_shared<MemoryRun>(std::move(context), std::move(record), options_.handle_of);
}

absl::Status MemoryStore::Adopt(KeptRun kept) {
  const int64_t record_bytes = MemoryRun::RecordBytes(kept.info);
  absl::StatusOr<ByteReservation> record = options_.budget->Reserve(record_bytes);
  std::shared_ptr<MemoryRun> run;
  if (record.ok()) {
    run = NewRun(kept.info, std::move(kept.storage), *std::move(record));
  } else {
    over_budget_ += record_bytes;
  }
  for (KeptSample& sample : kept.samples) {
    const int64_t bytes = Unpaid(sample);
    if (over_budget_ == 0) {
      absl::Status status = run->Adopt(std::move(sample));
      if (status.ok()) continue;
      if (!absl::IsResourceExhausted(status)) return status;
    }
    over_budget_ += bytes;  // All are counted, so that the error can say how much it takes.
  }
  if (run == nullptr) return absl::OkStatus();
  MutexLock lock(mutex_);
  runs_.emplace(kept.info.run, std::move(run));
  return absl::OkStatus();
}

absl::Status MemoryStore::CheckAdopted() const {
  if (over_budget_ == 0) return absl::OkStatus();
  const double bytes = static_cast<double>(options_.budget->used() + over_budget_);
  const double limit = static_cast<double>(options_.budget->limit());
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("what is kept takes ", HumanBytes(bytes), " of memory, and ", HumanBytes(limit),
                                " are for it: start with a --memory-budget that is ",
                                HumanNumber(std::ceil(bytes / limit * kTenths) / kTenths), " times as large, or more"),
                   {.reason = Reason::kOverBudget});
}

absl::StatusOr<RunInfo> MemoryStore::GetRun(absl::string_view run) {
  const absl::StatusOr<std::shared_ptr<MemoryRun>> found = FindRun(run);
  if (!found.ok()) return found.status();
  return (*found)->info();
}

absl::StatusOr<RunState> MemoryStore::StatRun(absl::string_view run) {
  const absl::StatusOr<std::shared_ptr<MemoryRun>> found = FindRun(run);
  if (!found.ok()) return found.status();
  return (*found)->State();
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

absl::StatusOr<int64_t> MemoryStore::CountRuns() {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(runs_.size());
}

absl::StatusOr<ReleaseResult> MemoryStore::DropRun(absl::string_view run) {
  absl::StatusOr<std::shared_ptr<MemoryRun>> dropped;
  {
    MutexLock dropping(runs_change_);
    dropped = FindRun(run);
    if (!dropped.ok() && (keeper_ == nullptr || !keeper_->Damaged(run))) return dropped.status();
    if (keeper_ != nullptr) {
      if (absl::Status status = keeper_->Drop(run); !status.ok()) return status;
    }
    if (!dropped.ok()) return ReleaseResult{};  // What was in a damaged one is not known.
    MutexLock lock(mutex_);
    runs_.erase((*dropped)->info().run);
  }
  return (*dropped)->Drop();
}

absl::StatusOr<AppendAck> MemoryStore::Append(AppendCommand command) {
  const absl::StatusOr<std::shared_ptr<MemoryRun>> run = FindRun(command.run);
  if (!run.ok()) return run.status();
  if (spiller_ == nullptr) return (*run)->Append(std::move(command));
  spiller_->MakeRoom((*run)->RoomFor(command));  // Where it cannot, the append is rejected if it needs it.
  absl::StatusOr<AppendAck> ack = (*run)->Append(std::move(command));
  spiller_->Look();
  return ack;
}

absl::StatusOr<SampleState> MemoryStore::Seal(absl::string_view run, Producer producer, absl::string_view sample,
                                              int64_t num_tokens, int64_t revision) {
  const absl::StatusOr<std::shared_ptr<MemorySample>> found = FindById(run, producer, sample);
  if (!found.ok()) return found.status();
  absl::StatusOr<SampleState> state = (*found)->Seal(num_tokens, revision);
  if (spiller_ != nullptr) spiller_->Look();
  return state;
}

absl::StatusOr<SampleState> MemoryStore::Truncate(absl::string_view run, Producer producer, absl::string_view sample,
                                                  int64_t rows, std::optional<int64_t> expected_revision) {
  const auto found = FindById(run, producer, sample);
  return found.ok() ? (*found)->Truncate(rows, expected_revision) : found.status();
}

absl::StatusOr<SampleSnapshot> MemoryStore::Snapshot(absl::string_view run, Producer producer, const SampleRef& sample,
                                                     absl::Span<const RowRange> rows, const AdmitSnapshot& admit) {
  const auto found = FindSample(run, producer, sample);
  return found.ok() ? (*found)->Snapshot(rows, admit) : found.status();
}

absl::StatusOr<SampleState> MemoryStore::Stat(absl::string_view run, Producer producer, const SampleRef& sample) {
  const auto found = FindSample(run, producer, sample);
  return found.ok() ? (*found)->Stat() : found.status();
}

absl::StatusOr<ListPage> MemoryStore::List(absl::string_view run, Producer producer, std::optional<GroupRange> groups,
                                           int32_t page_size, absl::string_view page_token) {
  const auto found = FindRun(run);
  return found.ok() ? (*found)->List(producer, groups, page_size, page_token) : found.status();
}

absl::StatusOr<ReleaseResult> MemoryStore::Release(absl::string_view run, std::optional<Producer> producer,
                                                   absl::Span<const SampleRef> samples) {
  const auto found = FindRun(run);
  return found.ok() ? (*found)->Release(producer, samples) : found.status();
}

absl::StatusOr<ReleaseResult> MemoryStore::ReleaseGroups(absl::string_view run, std::optional<Producer> producer,
                                                         GroupRange groups) {
  const auto found = FindRun(run);
  return found.ok() ? (*found)->ReleaseGroups(producer, groups) : found.status();
}

absl::StatusOr<std::unique_ptr<Store::Watch>> MemoryStore::WatchSample(absl::string_view run, Producer producer,
                                                                       const SampleRef& sample,
                                                                       std::function<void()> changed) {
  const absl::StatusOr<std::shared_ptr<MemoryRun>> found = FindRun(run);
  if (!found.ok()) return found.status();
  return (*found)->WatchSample(producer, sample, std::move(changed));
}

int64_t MemoryStore::Sweep(int64_t limit) {
  const std::vector<std::shared_ptr<MemoryRun>> runs = AllRuns();
  const size_t shards = runs.size() * SampleIndex::kShards;
  if (shards == 0) return 0;
  size_t start;
  {
    MutexLock lock(mutex_);
    start = sweep_start_;
  }
  int64_t removed = 0;
  size_t visited = 0;
  for (; visited < shards && removed < limit; ++visited) {
    const size_t at = (start + visited) % shards;
    removed += runs[at / SampleIndex::kShards]->Sweep(at % SampleIndex::kShards, limit - removed);
  }
  MutexLock lock(mutex_);
  sweep_start_ = start + visited;  // So that a busy shard does not keep the others waiting.
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

absl::StatusOr<std::shared_ptr<MemorySample>> MemoryStore::FindSample(absl::string_view run, Producer producer,
                                                                      const SampleRef& sample) const {
  const auto found = FindRun(run);
  return found.ok() ? (*found)->Find(producer, sample) : found.status();
}

absl::StatusOr<std::shared_ptr<MemorySample>> MemoryStore::FindById(absl::string_view run, Producer producer,
                                                                    absl::string_view sample) const {
  if (absl::Status status = CheckId(sample, "sample"); !status.ok()) return status;
  return FindSample(run, producer, {.sample = std::string(sample)});
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
    if (absl::Status status = store->Adopt(std::move(run)); !status.ok()) return status;
  }
  if (absl::Status status = store->CheckAdopted(); !status.ok()) return status;
  keeper->Begin();
  return store;
}

}  // namespace routing_replay::server
