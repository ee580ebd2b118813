// What the files of the Redis store share: access to Redis, the names of its keys, a cache of manifests, and blocks in
// Redis. The value of a block (see ValueBytes in ../row_pieces.h) is cut into chunks.
#ifndef SERVER_STORE_REDIS_REDIS_CONTEXT_H_
#define SERVER_STORE_REDIS_REDIS_CONTEXT_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/geometry.h"
#include "server/store/records/records.h"
#include "server/store/redis/client/redis_cluster.h"
#include "server/store/redis/redis_store.h"
#include "server/store/sample_rules.h"
#include "server/store/store_time.h"
#include "server/store/watch_list.h"

namespace routing_replay::server {

inline constexpr Producer kProducers[] = {Producer::kRollout, Producer::kTrainer};
// How many samples are read or changed together, at most.
inline constexpr size_t kRedisBatch = 256;
// How long a replaced or released block stays in Redis for readers whose snapshot refers to it.
inline constexpr std::chrono::milliseconds kReaderGrace = std::chrono::seconds(60);

// One incarnation of a run, as this server knows it. Redis keeps all keys with the same text in braces on one server.
// Each key of the run is PREFIX:{INCARNATION/PART}: followed by one of these, where <p> is the producer (1 or 2):
//   m<p>:HANDLE             hash     manifest: v (version: token of the last change), id, u (last use, ms), n (rows,
//                                    bytes, sealed: its share in the sums), head and w<N> (../records/records.h)
//   <p>:HANDLE:BLOCK:CHUNK  string   at most kRedisChunkBytes of a block; expires unless a commit references it
//   i<p>, g<p>, u<p>        zset     sample ids: by id (score 0), by group, by last use
//   n                       hash     sums: samples, sealed, rows, bytes
// Other keys: PREFIX:runs (set of run names), PREFIX:{NAME}:r (incarnation, 16 digits, then RunRecord). The incarnation
// is a random number, so that a later run of the same name never sees what this one left behind. Thread-safe.
struct RedisRun {
  static constexpr int kParts = 128;

  std::string PartKeys(int part) const { return absl::StrCat(prefix, ":{", incarnation, "/", part, "}:"); }
  std::string PartKeysOf(int64_t handle) const {
    return PartKeys(static_cast<int>(static_cast<uint64_t>(handle) % kParts));
  }

  // A use of a sample is not recorded if the last recorded use is less than this time ago.
  std::chrono::milliseconds use_grain() const {
    const auto ttl = std::chrono::duration_cast<std::chrono::milliseconds>(info.options.ttl);
    return std::min<std::chrono::milliseconds>(ttl / 10, std::chrono::minutes(1));
  }

  const RunInfo info;
  const std::string incarnation;
  const std::string prefix;
  const std::shared_ptr<WatchList> watches = std::make_shared<WatchList>();
  std::atomic<bool> ended{false};  // The run was dropped: look up the name again.
  const bool clears = false;       // True: CheckRun accepts a dropped run, so that its rest can be removed.
};

// A sample as Redis had it at some moment.
struct RedisManifest {
  std::string version;  // Empty: the sample does not exist.
  std::string sample;
  int64_t last_used_ms = 0;
  // Null if the sample does not exist; DATA_LOSS if its records are damaged.
  absl::StatusOr<std::shared_ptr<const SampleContent>> content = nullptr;
  // True if the manifest was not read but assumed (RedisSample::Guess). It may only be used for a change, because the
  // commit checks the version and that the run still exists.
  bool guessed = false;

  bool exists() const { return !version.empty(); }
  // True if the sample exists and its records are undamaged.
  bool whole() const { return exists() && content.ok(); }
  int64_t stored_bytes() const { return (*content)->pieces.charged_bytes() + (*content)->metadata_bytes(); }
};

// Manifests by key, so that an append need not read a manifest that this server read or wrote before. Thread-safe.
class RedisManifestCache {
 public:
  // The manifest as last read or written here; Redis may have a newer one.
  std::optional<RedisManifest> Find(const std::string& key);
  // `manifest` must be whole(). When the cache grows too large it is cleared: reading manifests again is cheap.
  void Put(const std::string& key, const RedisManifest& manifest);
  void Clear();

 private:
  Mutex mutex_;
  std::unordered_map<std::string, RedisManifest> manifests_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// What the samples and watches of one store use together. Thread-safe.
class RedisContext {
 public:
  RedisContext(std::shared_ptr<RedisCluster> redis, const RedisStoreOptions& store_options)
      : options(store_options), cluster(std::move(redis)), time(*store_options.clock) {}

  // Deadline of one step of a call: no later than the caller's.
  Clock::Time Deadline() const { return std::min(Clock::Real().Now() + options.timeout, CallDeadline::OfThisThread()); }
  // Calls RedisCluster::Execute until Deadline(). Its errors UNAVAILABLE, DEADLINE_EXCEEDED and RESOURCE_EXHAUSTED stay
  // as they are. All others (login, permissions, an older Redis) are logged for the operator and become UNAVAILABLE.
  std::vector<RedisResult> Execute(absl::Span<const RedisRequest> requests);
  absl::StatusOr<RedisReply> Ask(RedisRequest request);
  absl::StatusOr<RedisReply> Ask(RedisCommand command);
  // Makes a request of a command whose second word is its key.
  static RedisRequest Of(RedisCommand command);
  // Makes a request of a script, which must outlive the request, and its keys. The caller adds the other arguments.
  static RedisRequest Of(absl::string_view script, absl::Span<const std::string> keys);
  // Makes a request for the incarnation that the run's name has now.
  RedisRequest AskForRun(const RedisRun& run) const {
    return Of(RedisCommand({"GETRANGE", RunKey(run.info.run), "0", "15"}));
  }
  // True if Redis has WAITAOF (7.2 or newer), which waits until changes are on disks. Asks Redis until it has answered
  // once.
  absl::StatusOr<bool> HasWaitAof();
  // Logs, at most once a minute for the same `what`, which must come from a small set.
  void Warn(const std::string& what, const absl::Status& status);

  std::string RunsKey() const { return options.prefix + ":runs"; }
  std::string RunKey(absl::string_view run) const { return absl::StrCat(options.prefix, ":{", run, "}:r"); }
  // An id that no other server generates.
  std::string NewToken() { return absl::StrCat(absl::Hex(ids.Next(), absl::kZeroPad16)); }
  // Held by appends, seals and truncations of a sample, so that threads of this server do not make each other's commits
  // fail. Other servers and releases do not hold it: a commit fails if one of them has changed the sample meanwhile.
  Mutex& WriterLock(int64_t handle) { return writer_locks_[static_cast<uint64_t>(handle) % writer_locks_.size()]; }

  const RedisStoreOptions options;
  const std::shared_ptr<RedisCluster> cluster;
  const StoreTime time;
  ContentIds ids;  // Random start, so that two servers generate different ids.
  RedisManifestCache cache;
  // Called after each change by this server, with the key of the manifest and its new version (empty: removed).
  std::function<void(RedisRun& run, const SampleName& name, const std::string& key, const std::string& version)>
      changed;

 private:
  std::array<Mutex, 256> writer_locks_;
  std::atomic<std::optional<bool>> has_wait_aof_{std::nullopt};
  Mutex mutex_;
  std::map<std::string, Clock::Time> warned_ ABSL_GUARDED_BY(mutex_);
};

// Checks the answer to AskForRun. If the run is gone, sets run.ended and returns NOT_FOUND (kNoRun).
absl::Status CheckRun(RedisRun& run, const RedisResult& answer);
// Returns one manifest per name, in the order of `names`; if there is no such sample, the manifest's exists() is false.
// Manifests are found by handle, not by id, so one may belong to another sample with the same handle. So if a name has
// an id, the caller must compare the ids. Errors: those of Execute and CheckRun.
absl::StatusOr<std::vector<RedisManifest>> LookAt(const std::shared_ptr<RedisContext>& context, RedisRun& run,
                                                  absl::Span<const SampleName> names);

// Largest value written to Redis. Redis executes all commands on one thread, so larger values would block it for too
// long.
inline constexpr int64_t kRedisChunkBytes = int64_t{1} << 20;

// The keys of a sample and its blocks. Immutable; held by the blocks.
struct SampleKeys {
  SampleKeys(std::shared_ptr<RedisContext> redis, const RedisRun& run, const SampleName& name);

  std::string ManifestKey(Producer of) const;
  std::string Chunk(uint64_t block, int64_t chunk) const;

  const std::shared_ptr<RedisContext> context;
  const std::shared_ptr<const Geometry> geometry;
  const std::string sample;  // For messages; may be empty.
  const std::string part;    // RedisRun::PartKeysOf.
  const std::string handle;  // In hexadecimal.
  const Producer producer;
  const std::string key;  // Key of the manifest.
};

// A block that is in Redis or is about to be written to it. Thread-safe, except Written.
class RedisBlock final : public StoredBlock {
 public:
  // A block that is not in Redis yet.
  RedisBlock(std::shared_ptr<const SampleKeys> keys, uint64_t id, Block block, int64_t cost)
      : StoredBlock(nullptr, block.rows, block.codec, cost),
        keys_(std::move(keys)),
        id_(id),
        unwritten_(std::move(block)) {}
  RedisBlock(std::shared_ptr<const SampleKeys> keys, const BlockRef& at, int64_t cost)
      : StoredBlock(nullptr, at.rows, at.codec, cost), keys_(std::move(keys)), id_(at.id) {}

  uint64_t id() const { return id_; }
  int64_t bytes() const;  // Size of the value, all chunks together.
  std::vector<std::string> chunk_keys() const;

  // For a block that is not in Redis yet: adds the commands that write its chunks. Send them before Written().
  void AddPuts(std::vector<RedisCommand>& commands) const;
  // Frees the bytes in memory. Call when they are in Redis, before anybody else sees the block.
  void Written() { unwritten_.reset(); }

  // AddGets adds the commands that read the chunks. Take builds the block from their answers, which must be in order.
  void AddGets(std::vector<RedisRequest>& requests) const;
  absl::StatusOr<LoadedBlock> Take(absl::Span<RedisResult> results) const;

 private:
  friend class ReadAheadList;
  // DATA_LOSS if the block is lost or damaged; UNAVAILABLE if it is gone because the sample was changed or released.
  absl::StatusOr<LoadedBlock> LoadBytes() const override;
  absl::Status Gone() const;

  const std::shared_ptr<const SampleKeys> keys_;
  const uint64_t id_;
  std::optional<Block> unwritten_;
};

inline const RedisBlock& BlockOf(const RowPiece& piece) { return static_cast<const RedisBlock&>(*piece.stored); }

// Makes the blocks of one sample. Thread-safe.
class RedisHome final : public BlockHome {
 public:
  explicit RedisHome(std::shared_ptr<const SampleKeys> keys) : BlockHome(nullptr), keys_(std::move(keys)) {}

  // Approximate bytes in Redis: value and keys.
  int64_t Cost(const Geometry& geometry, int64_t rows, Codec codec) const override;
  std::shared_ptr<StoredBlock> Keep(Block block, int64_t cost) override;
  // A block that is already in Redis.
  std::shared_ptr<StoredBlock> Found(const BlockRef& at) const;

 private:
  const std::shared_ptr<const SampleKeys> keys_;
};

// The keys of the chunks of all blocks that the pieces refer to, each once. `without`: ids of blocks to leave out.
std::vector<std::string> ChunkKeys(absl::Span<const RowPiece> pieces, std::set<uint64_t> without = {});

// The rows of a snapshot. When one of their blocks is loaded, the next ones are read with it, about 4 MiB at a time:
// readers load them in order, and a round trip per block of 100 KB would take longer than the transfer itself.
std::vector<StoredRows> ReadAhead(std::vector<RowPiece> pieces);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_CONTEXT_H_
