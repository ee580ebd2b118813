// The runs of a deployment.
#ifndef SERVER_STORE_REDIS_REDIS_RUNS_H_
#define SERVER_STORE_REDIS_REDIS_RUNS_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/mutex.h"
#include "server/store/redis/redis_context.h"
#include "server/store/redis/redis_run.h"
#include "server/store/run_options.h"
#include "server/store/store.h"

namespace routing_replay::server {

// What Redis has answered for; whether that is on a disk is a setting of Redis.
inline constexpr DurabilityLevels kRedisDurability{Durability::kWritten, Durability::kWritten};

// Thread-safe. Errors too as those of RedisCluster.
class RedisRuns {
 public:
  // `context` outlives it.
  RedisRuns(RedisContext& context, Clock::Duration default_ttl) : context_(context), default_ttl_(default_ttl) {}

  // Store::OpenRun.
  absl::StatusOr<RunInfo> Open(absl::string_view run, const Geometry* geometry,
                               const std::optional<RunOptions>& options);
  // As it is now. NOT_FOUND (kNoRun).
  absl::StatusOr<std::shared_ptr<RedisRun>> Load(absl::string_view run);
  // As this server last knew it, or as it is now: who goes on to ask Redis will see whether it still lives.
  absl::StatusOr<std::shared_ptr<RedisRun>> Find(absl::string_view run);
  // Of the first `limit` names behind `after` those whose records can be read, by name; the others are told to the log.
  struct Page {
    std::vector<std::shared_ptr<RedisRun>> runs;
    std::string last;  // Of those names, if there are more; otherwise empty.
  };
  absl::StatusOr<Page> LoadPage(absl::string_view after, size_t limit);
  // All names.
  absl::StatusOr<int64_t> Count();

  // Store::DropRun. What the run had is cleared away later: readers may still be at it.
  absl::StatusOr<ReleaseResult> Drop(absl::string_view run);
  // Clears away some of what dropped runs had and whose time has come.
  void ClearDropped();

 private:
  // What a run's record says; `life` must be that of a run named so.
  absl::StatusOr<std::shared_ptr<RedisRun>> Take(const std::string& record, const std::string& life);
  absl::StatusOr<std::shared_ptr<RedisRun>> Take(const RedisResult& got, absl::string_view run);
  RedisRequest Get(absl::string_view run) const;
  absl::Status List(const std::string& run);
  // Some samples of a dropped run; whether there may be more.
  absl::StatusOr<bool> ClearSome(RedisRun& run);

  RedisContext& context_;
  const Clock::Duration default_ttl_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<RedisRun>> runs_ ABSL_GUARDED_BY(mutex_);
  // All that somebody holds, by life: the watchers of one life are together, whoever brings them news.
  std::map<std::string, std::weak_ptr<RedisRun>> lives_ ABSL_GUARDED_BY(mutex_);
};

// The sums of runs, in the same order.
absl::StatusOr<std::vector<RedisIndex::Sums>> SumsOf(RedisContext& context,
                                                     absl::Span<const std::shared_ptr<RedisRun>> runs);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_RUNS_H_
