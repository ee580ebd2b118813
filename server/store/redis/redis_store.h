// The store that any number of servers share: everything is in Redis or Valkey, one server or a cluster; this process
// keeps nothing that could not be read again. A shared cache: what a failover of Redis may lose is a table in
// ../README.md.
//
// A run is cut into 128 parts, each on one master (redis_context.h says which keys it has). A sample is a manifest (a
// hash) and its blocks' chunks; the part's index names it. So each change of a sample, its place in the index included,
// is ONE script, which compares the manifest's version first:
//
//   append    look at the manifest ─▶ rules ─▶ [SET chunks, commit script]
//             ◀── the script says that the version is another ──┘
//   read      HGETALL manifest (only its version, where that is known) ─▶ GET chunks, 4 MiB ahead of the reader
//   release   look ─▶ remove script: the manifest goes at once, its chunks 60 s later, for who still reads them
//   watch     a thread asks for the versions of what is watched, every 20 ms; changes made here are told at once
//   sweep     each part's samples by last use ─▶ remove script, if nobody has used them since
//
// Redis replicates behind its answers, in order: what a failover leaves of a part is what it was at an earlier time,
// never a mixture. A prefix is copied when a sample opens with it: parent and child may lie on different masters. The
// byte budget is not charged for rows in Redis: maxmemory bounds them there.
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
  // Of use and expiry. Outlives the store. All servers of a deployment must have about the same time of day.
  const Clock* clock = &Clock::Real();
  Clock::Duration default_ttl = RunOptions{}.ttl;                      // Of runs that are made without options.
  std::function<int64_t(absl::string_view)> handle_of = SampleHandle;  // The same in all servers.
  std::string prefix = "rr";                                           // Of all keys. CheckId.
  // Of one step of a call, where its CallDeadline is not earlier. A cluster that elects a new master needs some
  // seconds.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
};

// `name`: of the store. Errors of Redis itself go into the log; callers are told UNAVAILABLE, DEADLINE_EXCEEDED,
// RESOURCE_EXHAUSTED or DATA_LOSS.
std::unique_ptr<Store> NewRedisStore(std::string name, std::shared_ptr<RedisCluster> cluster,
                                     const RedisStoreOptions& options);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_STORE_H_
