// One sample of the memory store: its content, protected by a lock; and the index of a run's samples.
//
//   (made by the index)  unborn ──first append──▶ alive ──release, expiry, drop──▶ removed
//                           └──────first append rejected──────────────────────────▶
//
// An unborn sample is in the index only so that two appends that open it wait for each other. For all other calls it
// does not exist. Heavy work (comparing, merging) runs under the sample's lock; memory that a change frees is destroyed
// after the lock is released.
#ifndef SERVER_STORE_MEMORY_SAMPLE_H_
#define SERVER_STORE_MEMORY_SAMPLE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "server/admission/byte_budget.h"
#include "server/store/memory/memory_store.h"
#include "server/store/row_pieces.h"
#include "server/store/sample_rules.h"
#include "server/store/store.h"
#include "server/store/watch_list.h"

namespace routing_replay::server {

// State that the samples of a run share. The budget, the clock and the store's content ids must outlive it.
struct RunContext {
  // Samples share a limited number of locks, because one lock per sample would be a large part of a small sample's
  // memory. No thread ever locks two samples.
  Mutex& MutexOf(int64_t handle) const { return (*mutexes)[static_cast<uint64_t>(handle) % mutexes->size()]; }

  RunInfo info;
  ByteBudget& budget;
  const Clock& clock;
  ContentIds& content_ids;
  std::shared_ptr<BlockHome> home = std::make_shared<MemoryHome>(std::make_shared<RunUsage>(budget));
  SampleJournal* journal = home->journal();  // Null: samples do not outlive the process.
  std::shared_ptr<RunUsage> usage = home->usage();
  // A prime number of locks, so that the samples of one shard of the index are spread over all of them.
  using Mutexes = std::array<Mutex, 509>;
  std::unique_ptr<Mutexes> mutexes = std::make_unique<Mutexes>();
  std::shared_ptr<WatchList> watches = std::make_shared<WatchList>();
};

// The parent's rows for an append that names a prefix. They are looked up before the sample is locked, so that no
// thread ever locks two samples. Used only if the append opens or restarts the sample.
using ParentRows = std::optional<absl::StatusOr<SampleContent>>;

// Thread-safe. Errors as in store.h; NOT_FOUND (kNoSample) unless alive.
class MemorySample final {
 public:
  MemorySample(std::shared_ptr<const RunContext> run, absl::string_view id, int64_t handle, Producer producer,
               Clock::Time last_used);
  ~MemorySample() ABSL_NO_THREAD_SAFETY_ANALYSIS;

  const std::string& id() const { return id_; }
  int64_t handle() const { return handle_; }
  Producer producer() const { return producer_; }
  Clock::Time last_used() const { return last_used_.load(std::memory_order_relaxed); }

  // Makes an unborn sample alive, with content found in the storage. RESOURCE_EXHAUSTED (kOverBudget).
  absl::Status Adopt(SampleContent content);

  // Returns nothing if the sample was removed: look it up again. Otherwise `command` and `parent` have been consumed.
  std::optional<absl::StatusOr<AppendAck>> Append(AppendCommand& command, ParentRows& parent);
  absl::StatusOr<SampleState> Seal(int64_t num_tokens, int64_t revision);
  absl::StatusOr<SampleState> Truncate(int64_t rows, std::optional<int64_t> expected_revision);

  absl::StatusOr<SampleSnapshot> Snapshot(absl::Span<const RowRange> rows, const AdmitSnapshot& admit);
  absl::StatusOr<SampleState> Stat() const;
  // The rows [0, prefix.rows) for a sample that opens with them. FAILED_PRECONDITION (kOldRevision, kNotCommitted).
  absl::StatusOr<SampleContent> Prefix(const PrefixReference& prefix);

  // Bytes of the budget that Spill would free now; 0 unless the sample is alive and sealed.
  int64_t spillable_bytes() const;
  // Moves the bytes of a sealed sample's blocks to the disk of its run's home. Returns the bytes freed. Errors of
  // StoredBlock::Spill: some blocks may have moved nevertheless.
  absl::StatusOr<int64_t> Spill() const;

  // The sample's group; nothing unless the sample is alive.
  std::optional<int64_t> group() const;

  // When the index must examine this sample next. Used by the index only, under its lock.
  Clock::Time due() const { return due_; }
  void set_due(Clock::Time due) { due_ = due; }

  // What is left of a removed sample. Destroy it without holding a lock, after the sample is out of the index.
  struct Remains {
    RowPieces pieces;
    ByteReservation metadata;

    // Destroys these remains and returns how many bytes went back to the budget.
    int64_t Free();
  };
  // Removes an alive sample that was last used at or before `unused_since`. Returns nothing if it was used later or is
  // not alive. Does not call watchers: see Notify. After an error of SampleJournal::Remove the sample stays alive.
  absl::StatusOr<std::optional<Remains>> Remove(Clock::Time unused_since);
  // Like Remove, for a sample whose run is dropped: writes nothing to the journal.
  std::optional<Remains> End();
  // Removes the sample if it is unborn, and returns whether it was.
  bool RemoveUnborn();
  // Calls the watchers, who may call the store. The caller must hold no lock. A removed sample must be out of the index
  // first.
  void Notify() const { run_->watches->Notify(handle_, producer_); }

 private:
  enum class Phase : uint8_t { kUnborn, kAlive, kRemoved };
  // Working data of a change: first what it prepares, afterwards what it replaced. Created before the lock is taken and
  // destroyed after it is released.
  struct Work {
    std::optional<SampleContent> incarnation;  // The new incarnation that the append begins.
    std::optional<PieceChange> change;
    std::optional<SampleContent> next;  // The next content, without pieces; once committed, the previous one.
    std::vector<RowPiece> replaced;
    ByteReservation pool;
    bool changed = false;
  };

  absl::StatusOr<AppendAck> AppendLocked(AppendCommand& command, ParentRows& parent, Work& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex());
  absl::Status Prepare(AppendCommand& command, const AppendPlan& plan, Work& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex());
  // In a durable store, writes work.next, with the pieces of its windows from first_window on. Changes nothing in
  // memory.
  absl::Status Write(int64_t first_window, const Work& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex());
  // Replaces the content by work.next. Cannot fail.
  void Commit(Work& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex());

  bool spillable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex());
  Remains EndLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex());
  // Calls `change` (SealLocked or TruncateLocked) under the lock. If it changed the sample, then calls the watchers.
  template <typename... Arguments>
  absl::StatusOr<SampleState> Change(absl::StatusOr<SampleState> (MemorySample::*change)(Work&, Arguments...),
                                     Arguments... arguments);
  absl::StatusOr<SampleState> SealLocked(Work& work, int64_t num_tokens, int64_t revision)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex());
  absl::StatusOr<SampleState> TruncateLocked(Work& work, int64_t rows, std::optional<int64_t> expected_revision)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex());

  // Makes `pool` hold `bytes`, by reserving the part that it lacks. RESOURCE_EXHAUSTED (kOverBudget) if the budget has
  // no room for it.
  absl::Status Pay(int64_t bytes, ByteReservation& pool) const;
  // Returns the reservation that pays for the metadata, and subtracts the metadata from the run's stored bytes.
  ByteReservation TakeMetadata() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex());
  // Pays for the metadata at its current size, from its earlier reservation and `pool`, and counts it as stored.
  void ChargeMetadata(ByteReservation& pool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex());
  absl::Status CheckAlive() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex());
  absl::Status Describe(const absl::Status& status) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex());
  SampleState State() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex());
  // Null unless alive.
  const SampleContent* living() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex()) {
    return phase_ == Phase::kAlive ? &content_ : nullptr;
  }
  // Adds (+1) or subtracts (-1) the content in the run's totals.
  void CountUsage(int sign) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex());
  // A lock shared with other samples. A pointer to it would cost memory, so it is looked up each time.
  Mutex& mutex() const { return run_->MutexOf(handle_); }
  void Touch() { last_used_.store(run_->clock.Now(), std::memory_order_relaxed); }

  const std::shared_ptr<const RunContext> run_;
  const std::string id_;
  const int64_t handle_;
  std::atomic<Clock::Time> last_used_;
  Clock::Time due_;
  const Producer producer_;

  Phase phase_ ABSL_GUARDED_BY(mutex()) = Phase::kUnborn;
  SampleContent content_ ABSL_GUARDED_BY(mutex());
  int64_t metadata_bytes_ ABSL_GUARDED_BY(mutex()) = 0;  // Charged to the budget, counted in the run's usage.
};

// Samples by handle, spread over shards. A shard's lock is held only while the index is searched or changed. One handle
// belongs to one id in the whole run, whatever the producer. Thread-safe.
class SampleIndex {
 public:
  static constexpr size_t kShards = 16;

  explicit SampleIndex(std::shared_ptr<const RunContext> run) : run_(std::move(run)) {}

  // Null if there is none; the sample may be unborn or removed. An empty `id` matches any sample with the handle.
  std::shared_ptr<MemorySample> Find(int64_t handle, absl::string_view id, Producer producer) const;
  // Returns the sample. If there is none, inserts an unborn one (no append has been stored yet) with this last use.
  // ALREADY_EXISTS (kHandleCollision) if another id has the handle; NOT_FOUND (kNoRun) after Close.
  absl::StatusOr<std::shared_ptr<MemorySample>> FindOrInsert(int64_t handle, const std::string& id, Producer producer,
                                                             Clock::Time last_used);
  // Takes a sample whose phase is kRemoved out of the index. No effect if the index has another one under its handle.
  void Remove(const MemorySample& sample);

  // At most `limit` of a producer's samples with ids after `id`, by id.
  std::vector<std::shared_ptr<MemorySample>> After(Producer producer, absl::string_view id, size_t limit) const;
  std::vector<std::shared_ptr<MemorySample>> OfShard(size_t shard) const;
  // At most `limit` samples of a shard that were not used for the run's TTL. They stay in the index.
  std::vector<std::shared_ptr<MemorySample>> FindIdle(size_t shard, Clock::Time now, int64_t limit);
  // Takes all samples out, and rejects new ones from now on.
  std::vector<std::shared_ptr<MemorySample>> Close();

 private:
  using HandleKey = std::pair<int64_t, Producer>;
  struct IdLess {
    using is_transparent = void;
    bool operator()(const MemorySample* a, const MemorySample* b) const {
      return std::pair(absl::string_view(a->id()), a->producer()) <
             std::pair(absl::string_view(b->id()), b->producer());
    }
    // Compares by id alone.
    bool operator()(const MemorySample* a, absl::string_view b) const { return a->id() < b; }
    bool operator()(absl::string_view a, const MemorySample* b) const { return a < b->id(); }
  };
  struct DueLess {
    bool operator()(const MemorySample* a, const MemorySample* b) const {
      return a->due() != b->due() ? a->due() < b->due() : a < b;
    }
  };
  struct Shard {
    mutable Mutex mutex;
    bool closed ABSL_GUARDED_BY(mutex) = false;
    absl::flat_hash_map<HandleKey, std::shared_ptr<MemorySample>> by_handle ABSL_GUARDED_BY(mutex);
    absl::btree_set<MemorySample*, IdLess> by_id ABSL_GUARDED_BY(mutex);  // Sorted by id, then by producer.
    // Sorted by due(), when to check next whether the sample is idle: at the latest its last use + TTL.
    absl::btree_set<MemorySample*, DueLess> by_due ABSL_GUARDED_BY(mutex);
  };

  Shard& ShardOf(int64_t handle) { return shards_[static_cast<uint64_t>(handle) % kShards]; }
  const Shard& ShardOf(int64_t handle) const { return shards_[static_cast<uint64_t>(handle) % kShards]; }
  static std::shared_ptr<MemorySample> FindIn(const Shard& shard, const HandleKey& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mutex);
  std::shared_ptr<MemorySample> Insert(Shard& shard, int64_t handle, const std::string& id, Producer producer,
                                       Clock::Time last_used) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mutex);

  const std::shared_ptr<const RunContext> run_;
  std::array<Shard, kShards> shards_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_MEMORY_SAMPLE_H_
