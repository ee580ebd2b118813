// One sample of the Redis store: applies the rules of ../sample_rules.h to the manifest that Redis has now.
//
//   guess or look ─▶ rules ─▶ Commit ─▶ done
//             ◀── somebody else was first ──┘
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

// The state of a sample. Requires manifest.whole().
SampleState StateOf(const RedisContext& context, const SampleName& name, const RedisManifest& manifest);

// Removes those of `names` for which `ends` is true (null: all of them), and adds their number and bytes to `result`.
// If a sample changes before it is removed, it is read again. If `unused` is true, a sample that changes or is used
// before it is removed stays. After an error some samples may have been removed.
absl::Status RemoveSamples(const std::shared_ptr<RedisContext>& context, RedisRun& run, std::vector<SampleName> names,
                           const std::function<bool(const RedisManifest&)>& ends, bool unused, ReleaseResult& result);

// One sample during one call. Methods mean the same as those of Store.
class RedisSample {
 public:
  // `name.sample` may be empty: then it is whichever sample has the handle.
  RedisSample(std::shared_ptr<RedisContext> context, std::shared_ptr<RedisRun> run, SampleName name);
  RedisSample(const RedisSample&) = delete;
  RedisSample& operator=(const RedisSample&) = delete;
  // If the call changed the sample, notifies the watchers in this server. A watcher may call the store, so the caller
  // must hold no lock.
  ~RedisSample();

  // `parent`: the sample that the header's prefix names; null without a prefix.
  absl::StatusOr<AppendAck> Append(const AppendCommand& command, RedisSample* parent);
  absl::StatusOr<SampleState> Seal(int64_t num_tokens, int64_t revision);
  absl::StatusOr<SampleState> Truncate(int64_t rows, std::optional<int64_t> expected_revision);
  absl::StatusOr<SampleSnapshot> Snapshot(absl::Span<const RowRange> rows, const AdmitSnapshot& admit);
  absl::StatusOr<SampleState> Stat();
  // In a `synced` run, waits until a replica has the result of a successful call (from Redis 7.2 on, on the disks of
  // master and replica). Hold no lock. UNAVAILABLE if that is not confirmed: the change was made, and may be lost.
  absl::Status AwaitSynced();
  // Returns `found`. NOT_FOUND (kNoSample) if it is not this sample's manifest; DATA_LOSS if it is damaged.
  absl::StatusOr<RedisManifest> Check(RedisManifest found);

 private:
  struct Change {
    SampleContent next;  // With all its pieces.
    // The first window that the change touches. Earlier windows and their pieces stay as they are.
    int64_t first_window = 0;
    // Blocks of `next` that are not in Redis yet.
    std::vector<std::shared_ptr<StoredBlock>> added = {};
    // True for a truncation, which must not be executed twice: if it may have been executed (RedisResult::repeated) but
    // is not confirmed, the result is UNAVAILABLE.
    bool once = false;
  };
  // The manifest after the change; nothing if somebody else changed the sample meanwhile: read it again.
  using Committed = absl::StatusOr<std::optional<RedisManifest>>;

  // The current manifest; exists() may be false. ALREADY_EXISTS (kHandleCollision) if another sample has the handle.
  absl::StatusOr<RedisManifest> Find();
  // The current manifest. NOT_FOUND (kNoSample) if it does not exist or another sample has the handle.
  absl::StatusOr<RedisManifest> FindExisting();
  // Guesses the manifest without asking Redis: it is the cached one. If none is cached, an append that begins at row 0
  // is assumed to open a new sample. Returns nothing if the manifest must be read.
  std::optional<RedisManifest> Guess(const AppendHeader& header);
  // One attempt to append. Returns nothing if the manifest must be read before another attempt: somebody else changed
  // the sample, or the append would change nothing in a guessed manifest.
  absl::StatusOr<std::optional<AppendAck>> TryAppend(const AppendCommand& command, RedisSample* parent,
                                                     const RedisManifest& found);
  absl::StatusOr<Change> PlanChange(const SampleContent& content, bool new_incarnation, const AppendCommand& command,
                                    const AppendPlan& plan);
  // The change to `next`, with the pieces and blocks that PieceChange makes.
  absl::StatusOr<Change> Merged(SampleContent next, const RowPieces& pieces, std::vector<Block> blocks,
                                RowRange committed, bool sealed);
  // Reads the sample and commits what `make_change` returns for it: a change, or nothing if none is needed.
  template <typename MakeChange>
  absl::StatusOr<SampleState> Make(const MakeChange& make_change);

  Committed Commit(const RedisManifest& before, Change change);
  RedisRequest CommitRequest(const RedisManifest& before, const SampleContent& next, int64_t first_window,
                             const RedisManifest& now, const std::vector<std::string>& chunks);
  // Records the use of a sample, unless one was recorded recently. If it fails, a later use records it.
  void Touch(RedisManifest& found);

  const std::shared_ptr<RedisContext> context_;
  const std::shared_ptr<RedisRun> run_;
  SampleName name_;
  std::shared_ptr<const SampleKeys> keys_;
  bool changed_ = false;
  std::string version_;  // Version that this call wrote, or the current one if no change was needed.
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_SAMPLE_H_
