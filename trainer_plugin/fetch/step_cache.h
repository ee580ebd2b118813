// The rows of a step, fetched once: the log-probability pass and the update epochs of a step read the same slices.
#ifndef TRAINER_PLUGIN_FETCH_STEP_CACHE_H_
#define TRAINER_PLUGIN_FETCH_STEP_CACHE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/source.h"

namespace routing_replay::trainer {

// The purpose of a fetch. Ahead: nobody waits for its rows yet; it takes no room from rows that are still awaited, and
// leaves slices that cannot be read at once to the fetch that needs them.
enum class FetchTime : uint8_t { kNow, kAheadInStep, kAheadOfStep };

struct StepCacheCounters {
  int64_t hits = 0;        // Slices that a fetch for now found, or that another fetch was already reading.
  int64_t misses = 0;      // Slices that it had to read itself.
  int64_t ahead = 0;       // Slices read ahead.
  int64_t stale = 0;       // Kept slices that were not used because the ranks had agreed on another content id.
  int64_t evictions = 0;   // Slices removed to make room.
  int64_t not_kept = 0;    // Slices not kept for lack of room.
  int64_t bytes = 0;       // Present value.
  int64_t most_bytes = 0;  // Largest value so far.
  int64_t slices = 0;      // Present value.
  int64_t bytes_read = 0;  // Bytes of all slices read.
};

// Identifies what is read of one slice: run, producer, layers with their E, K and ordinal, sample or handle,
// expectations, row ranges. As long as the sample's content stays, slices of one source with the same key hold the same
// bytes, whatever micro-batch they are read for.
std::string SliceKey(const ReplayPlan& plan, const PlanSlice& slice, const FetchSequence& sequence, Producer producer,
                     absl::string_view run);

// Staged slices of one rank, at most `max_bytes`, each with its key. If several fetches need a slice at the same time,
// one of them reads it. Only readable slices are kept: a sample that falls back is requested again. When room is
// needed, the least recently used slices are evicted, except those that a fetch holds, and those that were read ahead
// for this step or the next and not used yet; if that leaves no room, the new slice is not kept. Thread-safe.
class StepCache {
 public:
  using Counters = StepCacheCounters;

  explicit StepCache(int64_t max_bytes);
  ~StepCache();
  StepCache(const StepCache&) = delete;
  StepCache& operator=(const StepCache&) = delete;

  // Begins the next step: drops everything except what was read ahead for it.
  void EndStep();
  // All waiting calls, present and future, get CANCELLED.
  void Stop();
  Counters counters() const;

 private:
  friend class CachedFetch;
  struct Entry;
  using EntryPtr = std::shared_ptr<Entry>;

  EntryPtr Find(const std::string& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops kept entries that nobody holds or awaits, least recently used first, until `bytes` more fit. False, with
  // nothing dropped, if that is not enough.
  bool MakeRoom(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Keep(const EntryPtr& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(const EntryPtr& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops entries that no step from `step` on has requested.
  void DropBefore(int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t max_bytes_;
  mutable Mutex mutex_;
  CondVar changed_;  // Signalled when an entry has been read, there may be room, or stopped_ is set.
  std::unordered_map<std::string, EntryPtr> entries_ ABSL_GUARDED_BY(mutex_);  // Kept, or being read.
  std::list<EntryPtr> kept_ ABSL_GUARDED_BY(mutex_);                           // The least recently used first.
  int64_t reserved_bytes_ ABSL_GUARDED_BY(mutex_) = 0;                         // Of slices that are being read ahead.
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  Counters counters_ ABSL_GUARDED_BY(mutex_);
};

// One fetch of a plan through a cache:
//
//   CachedFetch fetch(cache, plan, sequences, options, run, FetchTime::kNow);
//   while (true) {
//     absl::StatusOr<std::vector<int32_t>> slices = fetch.Next(deadline);   // Positions in plan.slices.
//     if (slices->empty()) break;
//     fetch.Give(what a read of these slices with fetch.read_options() staged);
//   }
//   absl::StatusOr<StagedRows> staged = fetch.Take("");
//
// When it is destroyed, slices that it did not read are free for others. Used by one thread. plan, sequences and
// options must outlive it.
class CachedFetch {
 public:
  CachedFetch(std::shared_ptr<StepCache> cache, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
              const FetchOptions& options, absl::string_view run, FetchTime time);
  ~CachedFetch();
  CachedFetch(const CachedFetch&) = delete;
  CachedFetch& operator=(const CachedFetch&) = delete;

  // The slices that this fetch must read next; empty: everything is there. First waits, if necessary, for other
  // fetches, and a fetch ahead also for room. DEADLINE_EXCEEDED, CANCELLED. Requires !IsReading().
  absl::StatusOr<std::vector<int32_t>> Next(Clock::Time deadline);
  // The options for reading its slices: those of the fetch, but ahead it waits for no rows (rows that are there would
  // have to wait with them), and rejects no sample, because nobody needs it yet.
  FetchOptions read_options() const;
  // The result of reading the slices of the last Next: their records and pieces.
  void Give(const StagedRows& read);
  // True between a Next with slices to read and its Give.
  bool IsReading() const;
  // All slices of the plan, as a fetch without a cache returns them; missing ones are kNotReady with `why_not` as the
  // message. Nothing for a fetch ahead. Errors as StagingSink.
  absl::StatusOr<StagedRows> Take(absl::string_view why_not) const;

 private:
  struct Slice;

  // All: with the cache's lock held.
  std::vector<int32_t> Claim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(cache_->mutex_);
  void Use(Slice& slice, const StepCache::EntryPtr& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cache_->mutex_);
  bool Open(Slice& slice) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cache_->mutex_);
  void Close(Slice& slice, std::shared_ptr<const StagedRows> rows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cache_->mutex_);
  bool IsSettled() const;

  bool AsAgreed(const Slice& slice, const StagedRows& rows) const;

  const std::shared_ptr<StepCache> cache_;
  const ReplayPlan& plan_;
  const absl::Span<const FetchSequence> sequences_;
  const FetchOptions& options_;
  const FetchTime time_;
  int64_t keep_until_ = 0;     // The last step that it reads for.
  std::vector<Slice> slices_;  // The plan's slices that must be read at all.
};

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_FETCH_STEP_CACHE_H_
