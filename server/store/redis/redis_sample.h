// One sample of the Redis store: the rules of ../sample over what Redis has now.
//
//   guess ─▶ rules ─▶ Commit ─▶ done
//     └─ refused ─▶ look ─▶ rules ─▶ Commit ─▶ done
//                    ◀── somebody else was first ──┘
#ifndef SERVER_STORE_REDIS_REDIS_SAMPLE_H_
#define SERVER_STORE_REDIS_REDIS_SAMPLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "server/store/redis/redis_change.h"
#include "server/store/redis/redis_context.h"
#include "server/store/redis/redis_run.h"
#include "server/store/store.h"

namespace routing_replay::server {

// A handle on a sample for one call. Methods mean what the same ones of Store mean; errors too as those of
// RedisCluster. DATA_LOSS (kNotCommitted, with missing_rows) once if rows that this server had acknowledged are gone,
// or if the whole sample is and whichever server left its entry in the index: the sample then has a new revision. A
// call by handle alone does not see the latter, since entries are known by id.
class RedisSample {
 public:
  // `context` outlives it. `name.sample` may be empty: whichever has the handle.
  RedisSample(RedisContext& context, std::shared_ptr<RedisRun> run, SampleName name)
      : context_(context), run_(std::move(run)), name_(std::move(name)) {}
  RedisSample(const RedisSample&) = delete;
  RedisSample& operator=(const RedisSample&) = delete;
  // Tells the watchers in this server if the call changed the sample: they may call the store, so no lock may be held.
  ~RedisSample();

  // `parent`: the sample that the header's prefix names, if it names one.
  // Blocks are taken out of the command when they are stored, and are in it again after an error.
  absl::StatusOr<AppendAck> Append(AppendCommand& command, RedisSample* parent);
  // To be called before each append that names a restart is acknowledged: the one that made the restart may not have
  // been. Returns when no failover undoes this revision of the sample any more, or after a short while an error that
  // says that one may. The append was made all the same: its blocks are gone, and its caller may send it again.
  absl::Status KeepRestart(int64_t revision);
  absl::StatusOr<SampleState> Seal(int64_t num_tokens, int64_t revision);
  // Comes to a replica of Redis where there is one: else UNAVAILABLE, of a truncation that was made all the same.
  absl::StatusOr<SampleState> Truncate(int64_t rows, std::optional<int64_t> expected_revision);
  absl::StatusOr<SampleSnapshot> Snapshot(absl::Span<const RowRange> rows, const AdmitSnapshot& admit);
  absl::StatusOr<SampleState> Stat();
  // The same of what a look found. Nothing where that does not tell: of another sample, of none, and of what is damaged
  // or less than was acknowledged.
  std::optional<SampleState> StateIn(const RedisFound& found) const;
  // Compares the sample with what its entry in the index said of it before this call. DATA_LOSS as above, too, where
  // the entry knows of more than the sample has, whichever server had acknowledged that.
  absl::Status CompareWith(const RedisEntry& entry);

 private:
  // As it is now; exists() may be false. ALREADY_EXISTS (kHandleCollision) if another sample has the handle.
  absl::StatusOr<RedisFound> Find();
  // … and exists, or NOT_FOUND (kNoSample).
  absl::StatusOr<RedisFound> FindExisting();
  std::string ManifestKey() const {
    return RedisSampleKeys(context_.keys, run_->life, name_.handle).Manifest(name_.producer);
  }
  absl::StatusOr<SampleContent> Prefix(const PrefixReference& prefix);
  // Raises the revision of a sample that lost what `acknowledged` says, and gives the error for it. Nothing: somebody
  // else was first; look again.
  absl::StatusOr<std::optional<absl::Status>> ReportLoss(const RedisFound& found,
                                                         const AcknowledgedSample& acknowledged);
  // The same for one of which nothing is left but its entry in the index: it is there again, without rows. OK if it was
  // not lost.
  absl::StatusOr<std::optional<absl::Status>> ReportGone(const RedisFound& found);

  absl::StatusOr<SampleState> TruncateHere(int64_t rows, std::optional<int64_t> expected_revision);
  // As KeepRestart does, waiting until about `deadline` or the caller's.
  absl::Status KeepRevision(int64_t revision, Clock::Time deadline);

  // What the append will most likely find; nothing if there is no telling, or more than that is needed.
  std::optional<RedisFound> Guess(const AppendHeader& header);
  // Nothing: look again, and try again.
  absl::StatusOr<std::optional<AppendAck>> TryAppend(AppendCommand& command, RedisSample* parent,
                                                     const RedisFound& found);
  absl::StatusOr<std::optional<RedisFound>> StoreAppend(AppendCommand& command, const RedisFound& found,
                                                        const SampleContent& content, bool new_life,
                                                        const AppendPlan& plan);
  absl::StatusOr<RedisChange> PlanChange(const RedisFound& found, const SampleContent& content, bool new_life,
                                         AppendCommand& command, const AppendPlan& plan);
  absl::StatusOr<RedisChange> SealChange(const RedisFound& found, int64_t num_tokens);
  RedisChange TruncateChange(const RedisFound& found, int64_t rows);
  template <typename MakeChange>
  absl::StatusOr<SampleState> Change(const MakeChange& make_change);

  RedisContext& context_;
  const std::shared_ptr<RedisRun> run_;
  SampleName name_;
  bool changed_ = false;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_SAMPLE_H_
