// Which layout of keys and values a deployment has.
#ifndef SERVER_STORE_REDIS_REDIS_LAYOUT_H_
#define SERVER_STORE_REDIS_REDIS_LAYOUT_H_

#include "absl/status/status.h"
#include "proto/wire/clock.h"
#include "server/store/redis/client/redis_cluster.h"
#include "server/store/redis/redis_keys.h"

namespace routing_replay::server {

// That of redis_keys.h, redis_manifest.h and redis_index.h. A higher one is another: no server reads or writes what it
// does not know.
inline constexpr int kRedisLayout = 1;

// Notes kRedisLayout where none is noted: nothing is there, or all of it is from before the note, which is layout 1.
// FAILED_PRECONDITION naming both where another one is; otherwise errors of Redis.
absl::Status ClaimRedisLayout(RedisCluster& cluster, const RedisKeys& keys, Clock::Time deadline);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_LAYOUT_H_
