// What the parts of one Redis store share: the way to Redis, the names of its keys, the manifests known last.
#ifndef SERVER_STORE_REDIS_REDIS_CONTEXT_H_
#define SERVER_STORE_REDIS_REDIS_CONTEXT_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/mutex.h"
#include "server/store/redis/client/redis_cluster.h"
#include "server/store/redis/redis_store.h"
#include "server/store/sample/sample_content.h"
#include "server/store/sample/sample_rules.h"
#include "server/store/store_time.h"
#include "server/store/watch_list.h"

namespace routing_replay::server {

inline constexpr Producer kProducers[] = {Producer::kRollout, Producer::kTrainer};
// Samples that are asked for, or changed, in one go.
inline constexpr size_t kRedisBatch = 256;
// So long can a block that was replaced or released still be read by who had looked before.
inline constexpr std::chrono::milliseconds kReaderGrace = std::chrono::seconds(60);

// One incarnation of a run, as this server knows it. Its keys, PREFIX:{INCARNATION/PART}:…, all of a part on one server
// of a cluster since they share what is in braces; p is the producer, 1 or 2:
//   m<p>:HANDLE             hash     manifest: v (version: token of the last change), id, u (last use, ms), n ("rows
//   bytes
//                                    sealed", as the sums count them), head and w<N> (../records/sample_record.h)
//   <p>:HANDLE:BLOCK:CHUNK  string   at most kRedisChunkBytes of a block; ends by itself unless a commit shows it
//   i<p>, g<p>, u<p>        zset     sample ids: by id (score 0), by group, by last use
//   n                       hash     sums: samples, sealed, rows, bytes
// Beside them PREFIX:runs (set of names), PREFIX:{NAME}:r (incarnation, 16 digits, and RunRecord) and PREFIX:dropped
// (zset of the same values, of dropped runs, by the time when their samples are to be removed). The incarnation is a
// random number: what a dropped run left behind cannot be seen from a run that has its name later. Thread-safe.
struct RedisRun {
  static constexpr int kParts = 128;

  // "PREFIX:{INCARNATION/PART}:"
  std::string PartKeys(int part) const { return absl::StrCat(prefix, ":{", incarnation, "/", part, "}:"); }
  std::string PartKeysOf(int64_t handle) const {
    return PartKeys(static_cast<int>(static_cast<uint64_t>(handle) % kParts));
  }

  // Uses that follow each other faster are not written down.
  std::chrono::milliseconds use_grain() const {
    const auto ttl = std::chrono::duration_cast<std::chrono::milliseconds>(info.options.ttl);
    return std::min<std::chrono::milliseconds>(ttl / 10, std::chrono::minutes(1));
  }

  const RunInfo info;
  const std::string incarnation;
  const std::string prefix;
  const std::shared_ptr<WatchList> watches = std::make_shared<WatchList>();
  std::atomic<bool> ended{false};  // It is known to be dropped: look for the run of this name again.
  const bool clears = false;       // It is known to be dropped, and is being removed.
};

// A sample as Redis had it at some time.
struct RedisManifest {
  std::string version;  // Empty: there is no such sample.
  std::string sample;
  int64_t last_used_ms = 0;
  // DATA_LOSS if its records are damaged.
  absl::StatusOr<std::shared_ptr<const SampleContent>> content = nullptr;
  // True: as this server knew it last, or took it to be, without a look. Only a change may be built on it, which finds
  // out whether that is so, and asks whether the run is still there.
  bool guessed = false;

  bool exists() const { return !version.empty(); }
  bool whole() const { return exists() && content.ok(); }
  int64_t stored_bytes() const { return (*content)->pieces.charged_bytes() + (*content)->metadata_bytes(); }
};

// Manifests by their key, those used last: as long as the version is the same, nobody need read them again.
// Thread-safe.
class RedisManifestCache {
 public:
  // As it was when it was last looked at or changed by this server; it may be another by now.
  std::optional<RedisManifest> Find(const std::string& key);
  // One that is whole.
  void Put(const std::string& key, const RedisManifest& manifest);
  void Forget(const std::string& key);

 private:
  struct Entry {
    std::string key;
    RedisManifest manifest;
    int64_t bytes;
  };
  void Erase(std::list<Entry>::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // The last used one first.
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Thread-safe.
class RedisContext {
 public:
  RedisContext(std::shared_ptr<RedisCluster> redis, const RedisStoreOptions& store_options)
      : options(store_options), cluster(std::move(redis)), time(*store_options.clock) {}

  // Of a step of a call: no later than the caller's.
  Clock::Time Deadline() const { return std::min(Clock::Real().Now() + options.timeout, CallDeadline::OfThisThread()); }
  // RedisCluster::Execute until Deadline. What is wrong with Redis, its user
  // or its settings is for the log and the operator, not for clients, who are told to try again:
  //   as they are   UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED
  //   DATA_LOSS     a key holds what no server of ours writes (WRONGTYPE)
  //   UNAVAILABLE   all others: the login, rights, an older Redis, this server stops
  std::vector<RedisResult> Execute(absl::Span<const RedisRequest> requests);
  absl::StatusOr<RedisReply> Ask(RedisRequest request);
  absl::StatusOr<RedisReply> Ask(RedisCommand command);
  // Its second word is the key.
  static RedisRequest Of(RedisCommand command);
  static RedisRequest Of(const RedisScript& script, absl::Span<const std::string> keys);
  // The log, not more often than once a minute of the same `what`, which comes from a small set.
  void Warn(const std::string& what, const absl::Status& status);

  std::string RunsKey() const { return options.prefix + ":runs"; }
  std::string DroppedKey() const { return options.prefix + ":dropped"; }
  std::string RunKey(absl::string_view run) const { return absl::StrCat(options.prefix, ":{", run, "}:r"); }
  // An id that no other server makes.
  std::string NewToken() { return absl::StrCat(absl::Hex(ids.Next(), absl::kZeroPad16)); }
  // Held by who changes a sample, so that the threads of one server do not make each other's changes void. That
  // different servers do not is up to the version that each change compares.
  Mutex& WriterLock(int64_t handle) { return writer_locks_[static_cast<uint64_t>(handle) % writer_locks_.size()]; }

  const RedisStoreOptions options;
  const std::shared_ptr<RedisCluster> cluster;
  const StoreTime time;
  ContentIds ids;  // Random start: two servers do not make the same one.
  RedisManifestCache cache;
  bool fsyncs = false;  // Redis 7.2 or newer: WAITAOF tells what is on disks.
  // Called after each change by this server: key of the manifest and its version now (empty: gone).
  std::function<void(RedisRun& run, const SampleName& name, const std::string& key, const std::string& version)>
      changed;

 private:
  std::array<Mutex, 256> writer_locks_;
  Mutex mutex_;
  std::map<std::string, Clock::Time> warned_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_CONTEXT_H_
