// The time by which the servers of one deployment note uses and expiry.
#ifndef SERVER_STORE_REDIS_REDIS_TIME_H_
#define SERVER_STORE_REDIS_REDIS_TIME_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "proto/wire/clock.h"
#include "server/store/redis/client/redis_cluster.h"

namespace routing_replay::server {

// Thread-safe.
class RedisTime {
 public:
  // The clocks of Redis servers and of this machine may differ by so much; more is for an operator to mend.
  static constexpr std::chrono::milliseconds kMostApart = std::chrono::minutes(1);

  // Until Follow: the time of day by `clock`, which outlives it.
  explicit RedisTime(const Clock& clock);

  // In ms since 1970. Goes on as `clock` does.
  int64_t NowMs() const;

  // Takes the time of the first master from here on, the same one for all servers. FAILED_PRECONDITION, but the time is
  // taken all the same, if the time of day here or that of another master differs by more than kMostApart: nobody can
  // tell then whose is right, and nothing should be removed by it. UNAVAILABLE: a master gave none, nothing is taken.
  absl::Status Follow(RedisCluster& cluster, Clock::Time deadline);

 private:
  std::chrono::milliseconds SinceStart() const;

  const Clock& clock_;
  std::atomic<int64_t> offset_ms_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_TIME_H_
