// One life of a run, as this server knows it.
#ifndef SERVER_STORE_REDIS_REDIS_RUN_H_
#define SERVER_STORE_REDIS_REDIS_RUN_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "server/store/redis/redis_context.h"
#include "server/store/redis/redis_index.h"
#include "server/store/store.h"
#include "server/store/watch_list.h"

namespace routing_replay::server {

// Thread-safe.
struct RedisRun {
  // `redis` outlives it.
  RedisRun(RedisContext& redis, RunInfo run_info, std::string run_life)
      : info(std::move(run_info)),
        life(std::move(run_life)),
        lives(info.options.ttl),
        index(redis, life, info.options.ttl) {}

  const RunInfo info;
  const std::string life;
  const RedisLives lives;
  const RedisIndex index;
  const std::shared_ptr<WatchList> watches = std::make_shared<WatchList>();
  std::atomic<bool> ended{false};  // It is known to be dropped.
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_RUN_H_
