#include "server/store/memory/memory_store.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "proto/wire/human.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/memory/run.h"
#include "server/store/sample/sample_rules.h"
#include "server/store/spill/spill.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {

namespace {

constexpr double kTenths = 10;

// Of the budget, for all of the runs. Blocks that samples share are paid for once.
int64_t BytesOf(absl::Span<const KeptRun> runs) {
  std::set<const StoredBlock*> shared;
  int64_t bytes = 0;
  for (const KeptRun& run : runs) {
    bytes += MemoryRun::RecordBytes(run.info);
    for (const KeptSample& sample : run.samples) {
      bytes += sample.content.metadata_bytes();
      for (const RowPiece& piece : sample.content.pieces.all()) {
        if (piece.exclusive() || shared.insert(piece.stored.get()).second) bytes += piece.stored->cost();
      }
    }
  }
  return bytes;
}

absl::Status CheckFits(int64_t bytes, const ByteBudget& budget) {
  bytes += budget.used();
  if (bytes <= budget.limit()) return absl::OkStatus();
  const double times = static_cast<double>(bytes) / static_cast<double>(budget.limit());
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("what is kept takes ", HumanBytes(bytes), " of memory, and ",
                                HumanBytes(budget.limit()), " are for it: start with a --memory-budget that is ",
                                HumanNumber(std::ceil(times * kTenths) / kTenths), " times as large, or more"),
                   {.reason = Reason::kOverBudget});
}

// Where nothing can be spilled, looking for it takes one part in so many of the time.
constexpr int kLookShare = 10;

// Spills sealed samples, those first that were not used for the longest time. Thread-safe.
class Spiller {
 public:
  // Calls its argument for all samples of the store.
  using VisitSamples = std::function<void(const std::function<void(std::shared_ptr<MemorySample>)>&)>;

  // `memory` outlives it, as must what `visit` looks at. Requires a disk.
  Spiller(const SpillOptions& options, ByteBudget& memory, VisitSamples visit);
  ~Spiller();

  // Where homes of blocks that can be spilled are to put them.
  const std::shared_ptr<SpillArea>& area() const { return area_; }

  // Something was stored. Cheap where there is nothing to do.
  void Look();
  // Spills until so many bytes of the memory budget are free: false if there is not enough to spill. Waits for the
  // disk: no lock of a sample may be held.
  bool MakeRoom(int64_t bytes);

  Store::Totals::Spill GetTotals() const;

 private:
  struct Candidate {
    Clock::Time last_used;
    int64_t bytes = 0;
    std::shared_ptr<MemorySample> sample;
  };

  bool Above(double part) const {
    return static_cast<double>(memory_.used()) > part * static_cast<double>(memory_.limit());
  }
  bool Fits(int64_t bytes) const { return bytes <= memory_.limit() - memory_.used(); }
  void Run();
  // Spills down to `end`.
  void SpillCold();
  // Spills one sample; false if there is none that can be.
  bool SpillOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(spilling_);
  // The coldest samples that together give back what is wanted.
  void FindCandidates() ABSL_EXCLUSIVE_LOCKS_REQUIRED(spilling_);
  void Failed(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(spilling_);

  const SpillOptions options_;
  ByteBudget& memory_;
  const std::shared_ptr<SpillArea> area_;
  const VisitSamples visit_;

  Mutex spilling_;                                                // Held for one sample at a time.
  std::vector<Candidate> candidates_ ABSL_GUARDED_BY(spilling_);  // The coldest is the last.
  std::chrono::steady_clock::time_point next_try_ ABSL_GUARDED_BY(spilling_);
  std::chrono::steady_clock::time_point next_look_ ABSL_GUARDED_BY(spilling_);  // At all samples.
  bool failing_ ABSL_GUARDED_BY(spilling_) = false;

  Mutex mutex_;
  CondVar wanted_changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> wanted_{false};
  std::thread thread_;
};

Spiller::Spiller(const SpillOptions& options, ByteBudget& memory, VisitSamples visit)
    : options_(options),
      memory_(memory),
      area_(std::make_shared<SpillArea>(options.disk, options.budget_bytes, options.segment_bytes)),
      visit_(std::move(visit)) {
  if (options_.background) thread_ = std::thread([this] { Run(); });
}

Spiller::~Spiller() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  wanted_changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void Spiller::Look() {
  if (!Above(options_.begin)) return;
  if (!options_.background) return SpillCold();
  if (wanted_.exchange(true)) return;
  MutexLock lock(mutex_);  // So that the thread is not just between its look and its wait.
  wanted_changed_.NotifyAll();
}

bool Spiller::MakeRoom(int64_t bytes) {
  if (bytes > memory_.limit()) return false;
  while (!Fits(bytes)) {
    MutexLock lock(spilling_);
    if (!Fits(bytes) && !SpillOne()) return Fits(bytes);
  }
  return true;
}

Store::Totals::Spill Spiller::GetTotals() const {
  const SpillCounts& counts = area_->counts;
  return {.budget_bytes = area_->space.limit(),
          .disk_bytes = area_->space.used(),
          .samples = counts.samples,
          .bytes = counts.bytes,
          .loads = counts.loads,
          .lost_blocks = counts.lost_blocks,
          .write_failures = counts.write_failures};
}

void Spiller::Run() {
  while (true) {
    {
      MutexLock lock(mutex_);
      while (!stop_ && !wanted_) wanted_changed_.Wait(mutex_);
      if (stop_) return;
    }
    wanted_ = false;
    SpillCold();
  }
}

void Spiller::SpillCold() {
  while (Above(options_.end)) {
    {
      MutexLock lock(mutex_);
      if (stop_) return;
    }
    MutexLock lock(spilling_);
    if (!SpillOne()) return;
  }
}

bool Spiller::SpillOne() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_try_) return false;
  for (bool looked = false;;) {
    if (candidates_.empty()) {
      if (looked || now < next_look_) return false;
      FindCandidates();
      looked = true;
      if (candidates_.empty()) return false;
    }
    const Candidate candidate = std::move(candidates_.back());
    candidates_.pop_back();
    if (candidate.sample->last_used() > candidate.last_used) continue;
    const absl::StatusOr<int64_t> freed = candidate.sample->Spill();
    if (!freed.ok()) {
      Failed(freed.status());
      return false;
    }
    if (*freed == 0) continue;
    failing_ = false;
    ++area_->counts.samples;
    area_->counts.bytes += *freed;
    return true;
  }
}

void Spiller::FindCandidates() {
  const auto wanted = static_cast<int64_t>(static_cast<double>(memory_.limit()) * (options_.begin - options_.end)) +
                      std::max<int64_t>(memory_.used() - memory_.limit(), 0);
  const auto colder = [](const Candidate& a, const Candidate& b) { return a.last_used < b.last_used; };
  std::vector<Candidate> heap;  // The warmest on top.
  int64_t bytes = 0;
  const auto start = std::chrono::steady_clock::now();
  visit_([&](std::shared_ptr<MemorySample> sample) {
    const Clock::Time last_used = sample->last_used();
    if (bytes >= wanted && !heap.empty() && last_used >= heap.front().last_used) return;
    const int64_t spillable = sample->spillable_bytes();
    if (spillable == 0) return;
    heap.push_back({last_used, spillable, std::move(sample)});
    std::push_heap(heap.begin(), heap.end(), colder);
    bytes += spillable;
    while (heap.size() > 1 && bytes - heap.front().bytes >= wanted) {
      bytes -= heap.front().bytes;
      std::pop_heap(heap.begin(), heap.end(), colder);
      heap.pop_back();
    }
  });
  std::sort(heap.begin(), heap.end(), [&](const Candidate& a, const Candidate& b) { return colder(b, a); });
  candidates_ = std::move(heap);
  if (!candidates_.empty() || !options_.background) return;
  const auto now = std::chrono::steady_clock::now();
  next_look_ = now + kLookShare * (now - start);
}

void Spiller::Failed(const absl::Status& status) {
  next_try_ = std::chrono::steady_clock::now() + options_.pause;
  if (std::exchange(failing_, true)) return;
  options_.warn(absl::StrCat("cold samples stay in memory: ", status.message()));
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
    const auto found = FindById(run, producer, sample);
    if (!found.ok()) return found.status();
    absl::StatusOr<SampleState> state = (*found)->Seal(num_tokens, revision);
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
                                int32_t page_size, absl::string_view page_token) override {
    const auto found = FindRun(run);
    return found.ok() ? (*found)->List(producer, groups, page_size, page_token) : found.status();
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
    const auto found = FindRun(run);
    if (!found.ok()) return found.status();
    return (*found)->WatchSample(producer, sample, std::move(changed));
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
    if (absl::Status status = CheckId(sample, "sample"); !status.ok()) return status;
    return FindSample(run, producer, {.sample = std::string(sample)});
  }
  std::vector<std::shared_ptr<MemoryRun>> AllRuns() const;
  std::shared_ptr<MemoryRun> NewRun(const RunInfo& info, std::shared_ptr<BlockHome> home, ByteReservation record);
  absl::StatusOr<std::shared_ptr<BlockHome>> HomeOf(const RunInfo& info);

  const MemoryStoreOptions options_;
  const std::shared_ptr<RunKeeper> keeper_;  // None: runs end with the process.
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
  absl::StatusOr<std::shared_ptr<BlockHome>> home = HomeOf(info);
  if (!home.ok()) return home.status();
  const std::shared_ptr<MemoryRun> made = NewRun(info, *std::move(home), *std::move(record));
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
  absl::StatusOr<ByteReservation> record = options_.budget->Reserve(MemoryRun::RecordBytes(kept.info));
  if (!record.ok()) return record.status();
  std::shared_ptr<MemoryRun> run = NewRun(kept.info, std::move(kept.home), *std::move(record));
  for (KeptSample& sample : kept.samples) {
    if (absl::Status status = run->Adopt(std::move(sample)); !status.ok()) return status;
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
  if (absl::Status status = CheckFits(BytesOf(runs), *options.budget); !status.ok()) return status;
  auto store = std::make_unique<MemoryStore>(std::move(options), keeper);
  for (KeptRun& run : runs) {
    if (absl::Status status = store->Adopt(std::move(run)); !status.ok()) return status;
  }
  keeper->Begin();
  return store;
}

}  // namespace routing_replay::server
