// How often each expert was chosen, per group of samples: counted when it is asked for, and kept, so that the next
// question costs only the rows that came since.
//
// Nothing is counted at ingest: a pass over every id takes longer than the rest of the way in. Rows of a sample are
// only ever added within one revision, so what is known of (sample, revision, first rows) stays true; whatever takes
// rows back (truncation, restart, release, expiry, another group) makes the group be counted anew.
#ifndef SERVER_STORE_MEMORY_EXPERT_COUNTS_H_
#define SERVER_STORE_MEMORY_EXPERT_COUNTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/mutex.h"
#include "server/store/memory/run_context.h"
#include "server/store/memory/sample.h"
#include "server/store/store.h"

namespace routing_replay {

// The counts of all MoE layers, layer after layer: layer i's begin at begin_of(i).
class CountTable {
 public:
  explicit CountTable(const Geometry& geometry);

  int64_t begin_of(int32_t ordinal) const { return begins_[ordinal]; }
  absl::Span<const int64_t> of(int32_t ordinal) const {
    return absl::MakeConstSpan(counts_).subspan(begins_[ordinal], begins_[ordinal + 1] - begins_[ordinal]);
  }
  int64_t bytes() const { return static_cast<int64_t>(counts_.size() * sizeof(int64_t)); }
  // Adds the ids of a piece. DATA_LOSS.
  absl::Status Add(const Geometry& geometry, const BlockRows& rows);
  void Reset() { counts_.assign(counts_.size(), 0); }

 private:
  std::vector<int64_t> begins_;  // One more than layers.
  std::vector<int64_t> counts_;
};

// Thread-safe. Questions for one group wait for each other; those for other groups do not.
class ExpertCounts {
 public:
  explicit ExpertCounts(std::shared_ptr<const RunContext> run) : run_(std::move(run)) {}

  // Adds to `load` what the samples of one group show; `samples` are all that may be in it. DATA_LOSS; CANCELLED once
  // `stop` says so, what was counted until then being kept.
  absl::Status AddGroup(Producer producer, int64_t group, absl::Span<const std::shared_ptr<MemorySample>> samples,
                        const std::function<bool()>& stop, ExpertLoad& load);
  // Frees what is kept of a group.
  void Forget(Producer producer, int64_t group);
  // … of the groups inside `range` that `stays` does not hold.
  void ForgetOthers(Producer producer, const std::optional<GroupRange>& range, const std::set<int64_t>& stays);
  void Clear();

 private:
  struct Counted {
    int64_t revision = 0;
    int64_t rows = 0;
    int64_t recorded_rows = 0;
  };
  struct Group {
    explicit Group(const Geometry& geometry) : table(geometry) {}

    Mutex mutex;
    CountTable table ABSL_GUARDED_BY(mutex);
    std::map<uint64_t, Counted> samples ABSL_GUARDED_BY(mutex);  // By the sample's birth.
    StoredCharge charge ABSL_GUARDED_BY(mutex);
  };
  using Key = std::pair<Producer, int64_t>;

  absl::Status Update(Group& group, int64_t number, absl::Span<const std::shared_ptr<MemorySample>> samples,
                      const std::function<bool()>& stop) ABSL_EXCLUSIVE_LOCKS_REQUIRED(group.mutex);
  // Counts the rows that came since; false if the group must be counted anew.
  absl::StatusOr<bool> CountSample(Group& group, int64_t number, const MemorySample& sample)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(group.mutex);
  // Pays for what the group takes; false if the budget has no room.
  bool Charge(Group& group) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(group.mutex);

  const std::shared_ptr<const RunContext> run_;
  Mutex mutex_;
  std::map<Key, std::shared_ptr<Group>> groups_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay

#endif  // SERVER_STORE_MEMORY_EXPERT_COUNTS_H_
