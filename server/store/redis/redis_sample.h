// One sample of the Redis store: the rules of ../sample over what Redis has now.
//
//   look ─▶ rules ─▶ Commit ─▶ done
//    ◀── somebody else was first ──┘
#ifndef SERVER_STORE_REDIS_REDIS_SAMPLE_H_
#define SERVER_STORE_REDIS_REDIS_SAMPLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/store/redis/redis_context.h"
#include "server/store/store.h"

namespace routing_replay::server {

// One manifest per name, as Redis has them now. A name without an id finds whichever sample has the handle; one with an
// id may find another sample's, which has the same handle. NOT_FOUND (kNoRun), and run.ended set, if the run is gone.
absl::StatusOr<std::vector<RedisManifest>> LookAt(const std::shared_ptr<RedisContext>& context, RedisRun& run,
                                                  absl::Span<const SampleName> names);
// Of one that is whole.
SampleState StateOf(const RedisContext& context, const SampleName& name, const RedisManifest& manifest);

// Removes those of the samples that `ends` is true of, and adds them to `result`. One that changes before it is removed
// is looked at again; where `unused` says so, a use counts as a change. After an error some of them may have ended.
absl::Status RemoveSamples(const std::shared_ptr<RedisContext>& context, RedisRun& run, std::vector<SampleName> names,
                           const std::function<bool(const RedisManifest&)>& ends, bool unused, ReleaseResult& result);

// A handle on a sample for one call. Methods mean what the same ones of Store mean.
class RedisSample {
 public:
  // `name.sample` may be empty: whichever has the handle.
  RedisSample(std::shared_ptr<RedisContext> context, std::shared_ptr<RedisRun> run, SampleName name);
  RedisSample(const RedisSample&) = delete;
  RedisSample& operator=(const RedisSample&) = delete;
  // Tells the watchers in this server if the call changed the sample: they may call the store, so no lock may be held.
  ~RedisSample();

  // `parent`: the sample that the header's prefix names, if it names one.
  absl::StatusOr<AppendAck> Append(const AppendCommand& command, RedisSample* parent);
  absl::StatusOr<SampleState> Seal(int64_t num_tokens, int64_t revision);
  absl::StatusOr<SampleState> Truncate(int64_t rows, std::optional<int64_t> expected_revision);
  absl::StatusOr<SampleSnapshot> Snapshot(absl::Span<const RowRange> rows, const AdmitSnapshot& admit);
  absl::StatusOr<SampleState> Stat();
  // Of a `synced` run, once the call has succeeded and holds no lock: waits until a replica has what it left (from
  // Redis 7.2 on, on its disk and the master's). UNAVAILABLE: it is made, and may be lost.
  absl::Status AwaitSynced();
  // NOT_FOUND (kNoSample) unless `found` is this sample's; its damage.
  absl::StatusOr<RedisManifest> Check(RedisManifest found);

 private:
  struct Change {
    SampleContent next;  // Whole.
    // From here on windows and their pieces may be other ones than before.
    int64_t first_window = 0;
    // Blocks of `next` that are not in Redis yet.
    std::vector<std::shared_ptr<StoredBlock>> added = {};
    // It must not be made twice (a truncation): UNAVAILABLE if its answer is lost.
    bool once = false;
  };
  // The manifest as it is now; nothing if somebody else changed it meanwhile: look again.
  using Committed = absl::StatusOr<std::optional<RedisManifest>>;

  // As it is now; exists() may be false. ALREADY_EXISTS (kHandleCollision) if another sample has the handle.
  absl::StatusOr<RedisManifest> Find();
  // … and exists, or NOT_FOUND (kNoSample).
  absl::StatusOr<RedisManifest> FindExisting();
  // Nothing: look again, and try again.
  absl::StatusOr<std::optional<AppendAck>> TryAppend(const AppendCommand& command, RedisSample* parent,
                                                     const RedisManifest& found);
  absl::StatusOr<Change> PlanChange(const SampleContent& content, bool new_incarnation, const AppendCommand& command,
                                    const AppendPlan& plan);
  // To `next`, with what PieceChange makes of the pieces and blocks.
  absl::StatusOr<Change> Merged(SampleContent next, const RowPieces& pieces, std::vector<Block> blocks,
                                RowRange committed, bool sealed);
  // `make_change`: the change of what was found, nothing if none is needed, or an error.
  template <typename MakeChange>
  absl::StatusOr<SampleState> Make(const MakeChange& make_change);

  Committed Commit(const RedisManifest& before, Change change);
  RedisRequest CommitRequest(const RedisManifest& before, const SampleContent& next, int64_t first_window,
                             const RedisManifest& now, const std::vector<std::string>& chunks);
  // Notes the use of a sample, if that was not done lately. If it fails, the next use does it.
  void Touch(RedisManifest& found);

  const std::shared_ptr<RedisContext> context_;
  const std::shared_ptr<RedisRun> run_;
  SampleName name_;
  std::shared_ptr<const SampleKeys> keys_;
  bool changed_ = false;
  std::string version_;  // That this call has made, or found to need no change.
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_SAMPLE_H_
