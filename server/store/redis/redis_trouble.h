// What is wrong with the Redis behind this server is the operator's business: it goes into the log, with all that is
// known, and clients of the service are told no more than that they should try again.
#ifndef SERVER_STORE_REDIS_REDIS_TROUBLE_H_
#define SERVER_STORE_REDIS_REDIS_TROUBLE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "server/store/redis/client/redis_cluster.h"

namespace routing_replay::server {

// Warnings for the log. Thread-safe.
class RedisTrouble {
 public:
  // `clock` outlives it. `lost_samples`: what CountLoss counts in; null: a count of its own.
  explicit RedisTrouble(const Clock& clock = Clock::Real(),
                        std::shared_ptr<std::atomic<int64_t>> lost_samples = nullptr)
      : clock_(clock),
        lost_samples_(lost_samples != nullptr ? std::move(lost_samples) : std::make_shared<std::atomic<int64_t>>(0)) {}

  // Not more often than once a minute of the same `what`, which comes from a small set.
  void Tell(const std::string& what, const absl::Status& status);
  // Redis came back with less of a sample than was acknowledged. Called before the revision is raised, so that whoever
  // finds a raised revision finds the loss in a server's log, too. Which sample it is goes into the log at the level
  // debug alone, of every one.
  void NameLoss(absl::string_view run, absl::string_view sample, int64_t rows_left, int64_t rows_acknowledged);
  // The revision was raised, by this server: counts the sample.
  void CountLoss() { ++*lost_samples_; }
  // How many samples were lost, if there are more than when it was said last; not more often than once a minute. To be
  // called from time to time.
  void TellLosses();
  int64_t lost_samples() const { return *lost_samples_; }

 private:
  // Whether `what` may be told now; it is then taken to be.
  bool MayTell(const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  const std::shared_ptr<std::atomic<int64_t>> lost_samples_;
  Mutex mutex_;
  std::map<std::string, Clock::Time> told_ ABSL_GUARDED_BY(mutex_);
  int64_t told_losses_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Passes everything on to `redis`, and changes errors:
//   as they are   UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED
//   UNAVAILABLE   CANCELLED: this server stops, and what waited was interrupted
//   DATA_LOSS     a key holds what is none of ours (WRONGTYPE); without its name
//   UNAVAILABLE   all others: the login, the user's rights, settings or versions that rule this server out. It is not
//                 the client who can mend them, nor who should see names of keys or files; they are told to `trouble`
// `trouble` outlives it.
std::shared_ptr<RedisCluster> HideRedisErrors(std::shared_ptr<RedisCluster> redis, RedisTrouble& trouble);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_TROUBLE_H_
