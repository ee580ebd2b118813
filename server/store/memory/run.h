// One run of the memory store: the index of its samples, and what is done to them.
#ifndef SERVER_STORE_MEMORY_RUN_H_
#define SERVER_STORE_MEMORY_RUN_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/mutex.h"
#include "server/store/memory/memory_store.h"
#include "server/store/memory/sample.h"
#include "server/store/store.h"

namespace routing_replay::server {

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
  // All samples of a shard.
  std::vector<std::shared_ptr<MemorySample>> OfShard(size_t shard) const;
  struct Looked {
    std::vector<std::shared_ptr<MemorySample>> idle;  // At most `limit`: not used for the run's TTL.
    std::vector<std::shared_ptr<MemorySample>> used;  // Since they were looked at the last time, at least a TTL ago.
  };
  // The samples of a shard that are due to be looked at. They stay in the index.
  Looked FindIdle(size_t shard, Clock::Time now, int64_t limit);
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
    // All samples of an id are the same beside an id.
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
    absl::btree_set<MemorySample*, IdLess> by_id ABSL_GUARDED_BY(mutex);  // And producer.
    // By when to look at a sample again: not later than last use + TTL.
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

// Thread-safe. Methods mean what the same ones of Store mean.
class MemoryRun {
 public:
  // `record`: of RecordBytes, held until nobody holds the run any more.
  MemoryRun(std::shared_ptr<const RunContext> context, ByteReservation record, HandleFunction handle_of)
      : context_(std::move(context)), record_(std::move(record)), handle_of_(std::move(handle_of)), index_(context_) {}

  // What a run takes of the budget beside its samples.
  static int64_t RecordBytes(const RunInfo& info);

  const RunInfo& info() const { return context_->info; }
  int64_t record_bytes() const { return record_.bytes(); }
  RunState State() const;

  // A sample as it was found. RESOURCE_EXHAUSTED (kOverBudget), ALREADY_EXISTS (kHandleCollision).
  absl::Status Adopt(KeptSample sample);

  // At most so much of the budget will Append take beside the command's reservation.
  int64_t RoomFor(const AppendCommand& command) const;
  absl::StatusOr<AppendAck> Append(AppendCommand command);
  // Never null. NOT_FOUND (kNoSample).
  absl::StatusOr<std::shared_ptr<MemorySample>> Find(Producer producer, const SampleRef& ref) const;
  absl::StatusOr<ListPage> List(Producer producer, std::optional<GroupRange> groups, int32_t page_size,
                                absl::string_view page_token) const;

  absl::StatusOr<ReleaseResult> Release(std::optional<Producer> producer, absl::Span<const SampleRef> samples);
  absl::StatusOr<ReleaseResult> ReleaseGroups(std::optional<Producer> producer, GroupRange groups);
  std::unique_ptr<Store::Watch> WatchSample(Producer producer, const SampleRef& ref, std::function<void()> changed);
  // Calls `look` for every sample of one producer or the other; none is locked meanwhile.
  void Visit(const std::function<void(std::shared_ptr<MemorySample>)>& look) const;
  // Removes at most `limit` idle samples of one shard of the index.
  int64_t Sweep(size_t shard, int64_t limit);
  // Ends every sample. The run takes no new ones.
  ReleaseResult Drop();

 private:
  ParentRows FindParent(const AppendHeader& header) const;
  // Ends the sample if it is alive and was not used since.
  absl::Status RemoveOne(MemorySample& sample, Clock::Time unused_since, ReleaseResult& result);

  const std::shared_ptr<const RunContext> context_;
  const ByteReservation record_;
  const HandleFunction handle_of_;
  SampleIndex index_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_MEMORY_RUN_H_
