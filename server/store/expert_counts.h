// How often each expert was chosen, per group of samples: counted when it is asked for, and kept, so that the next
// question costs only the rows that came since.
//
// Nothing is counted at ingest: a pass over every id takes longer than the rest of the way in. Rows of a sample are
// only ever added within one revision, so what is known of (sample, revision, first rows) stays true; whatever takes
// rows back (truncation, restart, release, expiry, another group) makes the group be counted anew.
#ifndef SERVER_STORE_EXPERT_COUNTS_H_
#define SERVER_STORE_EXPERT_COUNTS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/mutex.h"
#include "server/admission/byte_budget.h"
#include "server/store/sample/row_pieces.h"
#include "server/store/sample/stored_charge.h"
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

// A sample as it is counted. Thread-safe.
class CountedSample {
 public:
  virtual ~CountedSample() = default;

  virtual absl::string_view id() const = 0;
  // No other sample of the store has or had it, whatever its id.
  virtual uint64_t birth() const = 0;
  struct RowsSince {
    int64_t revision = 0;
    int64_t group = 0;
    int64_t committed_rows = 0;
    std::vector<RowPiece> pieces;
  };
  // The recorded rows from `row` on, if it is alive. Does not count as use. Within one revision rows are only added.
  virtual absl::StatusOr<std::optional<RowsSince>> RecordedSince(int64_t row) const = 0;
};

// Of one run. Thread-safe. Questions for one group wait for each other; those for other groups do not.
class ExpertCounts {
 public:
  // By group, all samples that may be in it.
  using Samples = std::map<int64_t, std::vector<std::shared_ptr<const CountedSample>>>;

  // What is kept is paid for from `budget`, which outlives it, and counted in `usage`.
  ExpertCounts(std::shared_ptr<const Geometry> geometry, ByteBudget& budget, std::shared_ptr<RunUsage> usage)
      : geometry_(std::move(geometry)), budget_(budget), usage_(std::move(usage)) {}

  // Store::CountExperts, of all samples in `groups`. Errors too as those of CountedSample; what was counted until a
  // CANCELLED is kept.
  absl::StatusOr<ExpertLoad> Count(Producer producer, const std::optional<GroupRange>& groups, const Samples& samples,
                                   absl::Span<const int32_t> layers, const std::function<bool()>& stop);
  // Frees what is kept of a group.
  void Forget(Producer producer, int64_t group);
  // Frees what is kept of groups that were not asked for since this was last called: of those that ended without this
  // server's doing nobody says so.
  void ForgetUnasked();
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
    std::atomic<bool> asked{true};
  };
  using Key = std::pair<Producer, int64_t>;

  // Of the groups inside `range` those that `samples` does not have.
  void ForgetOthers(Producer producer, const std::optional<GroupRange>& range, const Samples& samples);
  void ForgetThose(const std::function<bool(const Key&, Group&)>& which);
  // Adds to `load` what the samples of one group show.
  absl::Status AddGroup(Producer producer, const Samples::value_type& samples, const std::function<bool()>& stop,
                        ExpertLoad& load);
  absl::Status Update(Group& group, const Samples::value_type& samples, const std::function<bool()>& stop)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(group.mutex);
  // Counts the rows that came since; false if the group must be counted anew.
  absl::StatusOr<bool> CountSample(Group& group, int64_t number, const CountedSample& sample)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(group.mutex);
  // Pays for what the group takes; false if the budget has no room.
  bool Charge(Group& group) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(group.mutex);

  const std::shared_ptr<const Geometry> geometry_;
  ByteBudget& budget_;
  const std::shared_ptr<RunUsage> usage_;
  Mutex mutex_;
  std::map<Key, std::shared_ptr<Group>> groups_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay

#endif  // SERVER_STORE_EXPERT_COUNTS_H_
