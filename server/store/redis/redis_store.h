// The store that any number of servers share. All data is in Redis or Valkey (one server or a cluster), and this
// process keeps only caches of it. The table in ../README.md says what a failover of Redis may lose.
//
// A run is divided into 128 parts, each on one master (redis_context.h lists its keys). A sample consists of a
// manifest (a hash), the chunks of its blocks, and entries in the part's indexes, all in one part. So ONE script can
// make a change visible, after it has compared the manifest's version:
//
//   append    take the manifest: cached, or assumed missing (row 0), or read ─▶ rules ─▶ SET chunks, commit script;
//             if the script finds another version: read the manifest and repeat
//   read      HGETALL manifest ─▶ GET chunks, about 4 MiB at a time
//   release   read ─▶ remove script: the manifest goes at once, its chunks 60 s later, for readers with a snapshot
//   watch     a thread reads versions of watched samples about every 20 ms; changes by this server are notified at once
//   sweep     samples of each part by last use ─▶ remove script, which skips those used since
//
// Redis answers first and then replicates, in order. So after a failover a part is in an earlier state, never in a
// mixture of states. A prefix is copied when a sample opens with it: parent and child may be on different masters. The
// byte budget is not charged for rows in Redis: maxmemory limits them there.
#ifndef SERVER_STORE_REDIS_REDIS_STORE_H_
#define SERVER_STORE_REDIS_REDIS_STORE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "routing_replay/wire/sample.h"
#include "server/store/redis/client/redis_cluster.h"
#include "server/store/store.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {

inline constexpr DurabilityLevels kRedisDurability{Durability::kWritten, Durability::kSynced};

struct RedisStoreOptions {
  // For times of use and expiry. Must outlive the store. The clocks of all servers of a deployment must be about equal.
  const Clock* clock = &Clock::Real();
  Clock::Duration default_ttl = RunOptions{}.ttl;                      // For runs that are created without options.
  std::function<int64_t(absl::string_view)> handle_of = SampleHandle;  // All servers must use the same function.
  std::string prefix = "rr";                                           // Prefix of all keys; must pass CheckId.
  // Time limit for one step of a call, unless its CallDeadline is earlier. The default leaves a cluster time to elect
  // a new master, which takes some seconds.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
};

// If Redis fails or has lost data, calls return UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED or DATA_LOSS.
std::unique_ptr<Store> NewRedisStore(std::shared_ptr<RedisCluster> cluster, const RedisStoreOptions& options);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_STORE_H_
