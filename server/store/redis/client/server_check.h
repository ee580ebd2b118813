// Whether the servers are set up for a store that must not lose what it acknowledged.
#ifndef SERVER_STORE_REDIS_CLIENT_SERVER_CHECK_H_
#define SERVER_STORE_REDIS_CLIENT_SERVER_CHECK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/store/redis/client/redis_cluster.h"

namespace routing_replay::server {

// One line per setting of a master that is not as it should be: the server, the setting, its value and the wanted one.
// A server that does not let us see its settings (CONFIG is renamed, or the user may not) gives one line that says so.
// UNAVAILABLE if a server cannot be reached, FAILED_PRECONDITION if one is older than 7.0 (no sharded channels).
absl::StatusOr<std::vector<std::string>> CheckRedisServers(RedisCluster& cluster, Clock::Time deadline);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_SERVER_CHECK_H_
