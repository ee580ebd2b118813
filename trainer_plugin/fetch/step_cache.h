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

// What a fetch is for. Ahead: nobody waits for its rows yet; it takes no room from rows that are still awaited, and
// what cannot be read at once is left to the fetch that needs it.
enum class FetchTime : uint8_t { kNow, kAheadInStep, kAheadOfStep };

struct StepCacheCounters {
  int64_t hits = 0;        // Slices that a fetch for now found, or that another fetch was reading.
  int64_t misses = 0;      // Slices that it had to read itself.
  int64_t ahead = 0;       // Slices read ahead.
  int64_t stale = 0;       // Kept slices that were not used, as the ranks had agreed on another content id.
  int64_t evictions = 0;   // To make room.
  int64_t not_kept = 0;    // There was no room.
  int64_t bytes = 0;       // Held now.
  int64_t most_bytes = 0;  // Held at any time.
  int64_t slices = 0;      // Held now.
  int64_t bytes_read = 0;  // Of slices that were read.
};

// What is read of one slice: run, producer, layers with their E, K and place in the geometry, sample or handle, what is
// expected of it, row ranges. Slices of one source with the same key hold the same bytes as long as the sample's
// content stays, whatever micro-batch they are read for.
std::string SliceKey(const ReplayPlan& plan, const PlanSlice& slice, const FetchSequence& sequence, Producer producer,
                     absl::string_view run);

// Staged slices of one rank, at most `max_bytes` of them, each with its key. A slice that several fetches need at one
// time is read by one of them. Only what could be read is kept: a sample that falls back is asked for again. When room
// is needed, the slices go that were used least recently, but none that a fetch holds and none that was read ahead for
// this step or the next and not used yet; where that leaves no room the slice is not kept. Thread-safe.
class StepCache {
 public:
  using Counters = StepCacheCounters;

  explicit StepCache(int64_t max_bytes);
  ~StepCache();
  StepCache(const StepCache&) = delete;
  StepCache& operator=(const StepCache&) = delete;

  // Drops what was not read ahead for the next step, which begins.
  void EndStep();
  // Whoever waits, and whoever will, gets CANCELLED.
  void Stop();
  Counters counters() const;

 private:
  friend class CachedFetch;
  struct Entry;
  using EntryPtr = std::shared_ptr<Entry>;

  EntryPtr Find(const std::string& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops kept entries that nobody holds or awaits, the least recently used first, until `bytes` more fit. False, and
  // nothing is dropped, if they are not enough.
  bool MakeRoom(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Keep(const EntryPtr& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(const EntryPtr& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // All that no step from this one on has asked for.
  void DropBefore(int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t max_bytes_;
  mutable Mutex mutex_;
  CondVar changed_;  // An entry is no longer being read, there may be room, or stopped_.
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
// What it was to read and did not is free for others when it goes. Used by one thread. plan, sequences and options must
// outlive it.
class CachedFetch {
 public:
  CachedFetch(std::shared_ptr<StepCache> cache, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
              const FetchOptions& options, absl::string_view run, FetchTime time);
  ~CachedFetch();
  CachedFetch(const CachedFetch&) = delete;
  CachedFetch& operator=(const CachedFetch&) = delete;

  // What is to be read next by this fetch; none: everything is there. First waits, if it must, for what other fetches
  // read, and one that is ahead also for room. DEADLINE_EXCEEDED, CANCELLED. Requires !IsReading().
  absl::StatusOr<std::vector<int32_t>> Next(Clock::Time deadline);
  // As its slices are to be read: as it was told, but ahead it waits for no rows, or those that are there would wait
  // with it, and no sample is rejected that nobody needs yet.
  FetchOptions read_options() const;
  // The answer to the last Next: its records and pieces of the slices that were to be read.
  void Give(const StagedRows& read);
  // Between a Next with something to read and the Give of it.
  bool IsReading() const;
  // All slices of the plan, as one fetch without a cache gives them; any that is not there is kNotReady, and the
  // message says why. Nothing for a fetch ahead. Errors as StagingSink.
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
  std::vector<Slice> slices_;  // Of the plan those that are to be read at all.
};

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_FETCH_STEP_CACHE_H_
