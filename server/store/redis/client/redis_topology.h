// What is known of a deployment: how to log in, who serves what, and the connections that are open.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_TOPOLOGY_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_TOPOLOGY_H_

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/mutex.h"
#include "server/store/redis/client/redis_cluster.h"
#include "server/store/redis/client/redis_exchange.h"
#include "server/store/redis/client/redis_pool.h"
#include "server/store/redis/client/slot_map.h"
#include "server/store/redis/client/wake_event.h"

namespace routing_replay::server {

// Whether trying again later cannot help: PERMISSION_DENIED, FAILED_PRECONDITION, INVALID_ARGUMENT.
bool IsFinalRedisError(const absl::Status& status);

// Thread-safe.
class RedisTopology {
 public:
  struct View {
    SlotMap map;
    int64_t generation = 0;  // Of the answer that the map comes from; single slots may have been corrected since.
    bool clustered = false;
  };
  struct Counters {
    std::atomic<int64_t> moved{0}, asked{0}, retried{0}, lost_connections{0}, map_refreshes{0}, connects{0};
  };

  // `tls` as the endpoint wants it. Knows nothing before the first Refresh.
  RedisTopology(const RedisEndpoint& endpoint, const RedisClusterOptions& options, std::shared_ptr<const RedisTls> tls);

  std::shared_ptr<const View> view() const;
  // Asks one server after the other for the map, unless the view is newer than generation `seen` already; one caller
  // asks, the others wait for it. UNAVAILABLE: none answers, or nobody serves anything; else as RedisCluster::Connect.
  absl::Status Refresh(int64_t seen, Clock::Time deadline);
  // A server said that `slot` lives at `master` now.
  void Moved(int slot, const RedisAddress& master);

  absl::StatusOr<RedisLease> Take(const RedisAddress& server, Clock::Time deadline) {
    return pool_.Take(server, deadline);
  }
  // A connection outside of the pool; takes connect_timeout at most. As RedisConnection::Open.
  absl::StatusOr<std::unique_ptr<RedisConnection>> Open(const RedisAddress& server, RedisWait wait);

  // RedisCluster::Abandon.
  void Abandon() { abandoned_.Set(); }
  bool abandoned() const { return abandoned_.is_set(); }
  // A wait that ends when the topology is abandoned.
  RedisWait WaitUntil(Clock::Time deadline) const {
    return {.deadline = deadline, .clock = options_.clock, .interrupt_fd = abandoned_.fd()};
  }

  const RedisClusterOptions& options() const { return options_; }
  RedisExchangeLimits exchange_limits() const { return {.response_timeout = options_.response_timeout}; }
  Counters& counters() { return counters_; }

 private:
  std::vector<RedisAddress> Candidates();
  Clock::Duration TimeForOne(size_t candidates);
  absl::StatusOr<View> AskAnyone(Clock::Time deadline);
  absl::StatusOr<View> Ask(const RedisAddress& server, Clock::Time deadline);
  absl::StatusOr<View> Read(const RedisAddress& server, const RedisReply& reply);

  const RedisEndpoint endpoint_;
  const RedisClusterOptions options_;
  const std::shared_ptr<const RedisTls> tls_;
  WakeEvent abandoned_;
  Counters counters_;
  RedisPool pool_;
  mutable Mutex mutex_;
  CondVar refreshed_;
  std::shared_ptr<const View> view_ ABSL_GUARDED_BY(mutex_) = std::make_shared<const View>();
  bool refreshing_ ABSL_GUARDED_BY(mutex_) = false;
  size_t first_candidate_ ABSL_GUARDED_BY(mutex_) = 0;
  bool nobody_answered_ ABSL_GUARDED_BY(mutex_) = false;  // To the last refresh.
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_TOPOLOGY_H_
