// Changes that must not be undone by a failover. Redis answers before its replicas have heard of a change, which most
// changes can stand: a sample that loses one is shorter. One that lost a truncation would have its old rows again, at
// its old revision, and nobody could tell. Such changes are rare, and wait.
#ifndef SERVER_STORE_REDIS_REDIS_REPLICA_H_
#define SERVER_STORE_REDIS_REDIS_REPLICA_H_

#include <string>

#include "absl/status/status.h"
#include "server/store/redis/redis_run.h"

namespace routing_replay::server {

// Returns OK when a replica of the master that has `manifest_key` has all that was done there before this call. It is
// OK, too, where there is no replica: the server alone has none that follows it (one that is still being given its
// first copy does not); a cluster has none of that master that it does not take for failed. Else waits until about the
// caller's deadline, then UNAVAILABLE. Errors of RedisCluster. May give the manifest its time to live anew.
//
// What the master had lost before this call is not found out: look at the sample afterwards.
absl::Status AwaitReplica(RedisContext& context, const RedisRun& run, const std::string& manifest_key);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_REPLICA_H_
