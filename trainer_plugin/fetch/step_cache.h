// A cache for the slices of one training step, because the log-probability pass and the update epochs of a step read
// the same slices.
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

// When the rows of a fetch are needed. A prefetch (kAhead) only fills the cache: it waits for room there, and leaves
// slices that cannot be read at once to the fetch that needs them.
enum class FetchTime : uint8_t { kNow, kAhead };

struct StepCacheCounters {
  int64_t hits = 0;        // Slices found in the cache, or already being read by another fetch.
  int64_t misses = 0;      // Slices that had to be read. Prefetches count neither hits nor misses.
  int64_t bytes = 0;       // Bytes that the cache holds now.
  int64_t bytes_read = 0;  // Bytes of all slices read.
};

// The key of a slice: layers with their E, K and ordinal, sample or handle, expected num_tokens and token checks, row
// ranges. As long as a sample does not change, slices of one source with the same key hold the same bytes, whatever
// micro-batch they are read for.
std::string SliceKey(const ReplayPlan& plan, const PlanSlice& slice, const FetchSequence& sequence);

// Caches staged slices of one source and rank by key, at most `max_bytes`. If several fetches need a slice at the same
// time, only one of them reads it. Only slices that could be read are cached: a sample that falls back is requested
// again. When room is needed, the least recently used slices are evicted, except those that a fetch holds and those
// that were prefetched and not used yet. If there is still no room, the new slice is not cached. Thread-safe.
class StepCache {
 public:
  using Counters = StepCacheCounters;

  explicit StepCache(int64_t max_bytes);
  ~StepCache();
  StepCache(const StepCache&) = delete;
  StepCache& operator=(const StepCache&) = delete;

  // Begins the next step: evicts all slices.
  void EndStep();
  // Makes all waiting calls, now and later, end with CANCELLED.
  void Stop();
  Counters counters() const;

 private:
  friend class CachedFetch;
  struct Entry;
  using EntryPtr = std::shared_ptr<Entry>;

  EntryPtr Find(const std::string& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Evicts entries, least recently used first, until `bytes` more fit; not entries that a fetch holds or that were
  // prefetched and not used yet. If this is not possible, evicts nothing and returns false.
  bool MakeRoom(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Keep(const EntryPtr& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(const EntryPtr& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t max_bytes_;
  mutable Mutex mutex_;
  CondVar changed_;  // Signalled when an entry was read, when there may be room, and when stopped_ is set.
  std::unordered_map<std::string, EntryPtr> entries_ ABSL_GUARDED_BY(mutex_);  // Entries that are cached or being read.
  std::list<EntryPtr> kept_ ABSL_GUARDED_BY(mutex_);  // Cached entries, least recently used first.
  // Bytes of slices that are being prefetched.
  int64_t reserved_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  Counters counters_ ABSL_GUARDED_BY(mutex_);
};

// One fetch of a plan through a cache:
//
//   CachedFetch fetch(cache, plan, sequences, options, FetchTime::kNow);
//   while (true) {
//     absl::StatusOr<std::vector<int32_t>> slices = fetch.Next(deadline);   // Positions in plan.slices.
//     if (slices->empty()) break;
//     fetch.Give(what a read of these slices with fetch.read_options() staged);
//   }
//   absl::StatusOr<StagedRows> staged = fetch.Take("");
//
// When a CachedFetch is destroyed, slices that it was to read but has not read may be read by others. For one thread.
// plan, sequences and options must outlive it.
class CachedFetch {
 public:
  CachedFetch(std::shared_ptr<StepCache> cache, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
              const FetchOptions& options, FetchTime time);
  ~CachedFetch();
  CachedFetch(const CachedFetch&) = delete;
  CachedFetch& operator=(const CachedFetch&) = delete;

  // Returns the slices that this fetch must read next; empty: nothing is left to read. If it can read none yet, a
  // kNow fetch waits for slices that others read, a kAhead fetch for room. CANCELLED after Stop. Requires !IsReading().
  absl::StatusOr<std::vector<int32_t>> Next(Clock::Time deadline);
  // The options for reading the slices: those of the fetch. But a prefetch does not wait for rows that are not
  // committed (other rows of the read would be delayed), and never fails because of a sample, because nobody needs it
  // yet.
  FetchOptions read_options() const;
  // Takes the result of reading the slices of the last Next: their records and pieces.
  void Give(const StagedRows& read);
  // True between a Next with slices to read and its Give.
  bool IsReading() const;
  // Returns all slices of the plan, as a fetch without a cache would; missing ones are kNotReady with `why_not` as the
  // message. Returns nothing for a prefetch. Fails with the errors of StagingSink.
  absl::StatusOr<StagedRows> Take(absl::string_view why_not) const;

 private:
  struct Slice;

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
  int64_t step_ = 0;           // The step of the cache in which this fetch was made.
  std::vector<Slice> slices_;  // The slices of the plan that are not live.
};

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_FETCH_STEP_CACHE_H_
