// The samples of one run, by id and by handle.
#ifndef SERVER_STORE_MEMORY_SAMPLE_INDEX_H_
#define SERVER_STORE_MEMORY_SAMPLE_INDEX_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/mutex.h"
#include "server/store/memory/run_context.h"
#include "server/store/memory/sample.h"

namespace routing_replay {

// Spread over shards by handle, one lock each, held for look-ups only. One handle belongs to one id in the whole run,
// whatever the producer. Thread-safe.
class SampleIndex {
 public:
  static constexpr size_t kShards = 16;

  explicit SampleIndex(std::shared_ptr<const RunContext> run) : run_(std::move(run)) {}

  // Null if there is none; it may be unborn or removed. Without an id whichever has the handle is found.
  std::shared_ptr<MemorySample> Find(int64_t handle, absl::string_view id, Producer producer) const;
  // The sample, made unborn, and last used then, if there was none. ALREADY_EXISTS (kHandleCollision) if another id has
  // the handle; NOT_FOUND (kNoRun) once closed.
  absl::StatusOr<std::shared_ptr<MemorySample>> FindOrInsert(int64_t handle, const std::string& id, Producer producer,
                                                             Clock::Time last_used);
  // Takes the sample out. It must have ended already. No effect if another one is in its place.
  void Remove(const MemorySample& sample);

  // At most `limit` of a producer's samples with ids after `id`, by id.
  std::vector<std::shared_ptr<MemorySample>> After(Producer producer, absl::string_view id, size_t limit) const;
  // At most `limit` ids of a shard after `id`, by id: the samples of each.
  std::vector<std::shared_ptr<MemorySample>> OfShard(size_t shard, absl::string_view id, size_t limit) const;
  struct Looked {
    std::vector<std::shared_ptr<MemorySample>> idle;  // At most `limit`: not used for the run's TTL.
    std::vector<std::shared_ptr<MemorySample>> used;  // Since they were looked at the last time, at least a TTL ago.
  };
  // The samples of a shard that are due to be looked at. They stay in the index.
  Looked FindIdle(size_t shard, Clock::Time now, int64_t limit);
  // Takes all samples out, and refuses new ones from now on.
  std::vector<std::shared_ptr<MemorySample>> Close();

 private:
  struct Entry {
    std::shared_ptr<MemorySample> sample;
    Clock::Time due;  // Its key in Shard::due: not later than last use + TTL.
  };
  struct Slot {
    int64_t handle = 0;
    std::array<Entry, 2> entries;  // By producer.
    bool empty() const { return entries[0].sample == nullptr && entries[1].sample == nullptr; }
  };
  using Slots = std::map<std::string, Slot, std::less<>>;
  using Due = std::pair<Clock::Time, const MemorySample*>;
  struct Shard {
    mutable Mutex mutex;
    bool closed ABSL_GUARDED_BY(mutex) = false;
    Slots slots ABSL_GUARDED_BY(mutex);
    std::unordered_map<int64_t, Slots::iterator> by_handle ABSL_GUARDED_BY(mutex);
    std::map<Due, Entry*> due ABSL_GUARDED_BY(mutex);  // When to look at a sample again.
  };

  static size_t IndexOf(Producer producer) { return producer == Producer::kTrainer ? 1 : 0; }
  Shard& ShardOf(int64_t handle) { return shards_[static_cast<uint64_t>(handle) % kShards]; }
  const Shard& ShardOf(int64_t handle) const { return shards_[static_cast<uint64_t>(handle) % kShards]; }
  std::shared_ptr<MemorySample> Insert(Shard& shard, int64_t handle, const std::string& id, Producer producer,
                                       Clock::Time last_used) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mutex);

  const std::shared_ptr<const RunContext> run_;
  std::array<Shard, kShards> shards_;
};

}  // namespace routing_replay

#endif  // SERVER_STORE_MEMORY_SAMPLE_INDEX_H_
