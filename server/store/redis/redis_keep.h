// Releases that wait for a checkpoint: sealed samples are marked, and end when a checkpoint holds them.
#ifndef SERVER_STORE_REDIS_REDIS_KEEP_H_
#define SERVER_STORE_REDIS_REDIS_KEEP_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/store/redis/redis_look.h"

namespace routing_replay::server {

// How many of the samples are sealed, have no checkpoint yet, and are marked now, of those that `asked` is true of.
// Many are marked at once. Errors as those of RedisSample; after one, some may be marked. Watchers in this server are
// told.
absl::StatusOr<int64_t> KeepForCheckpoint(RedisContext& context, const std::shared_ptr<RedisRun>& run,
                                          absl::Span<const SampleName> names,
                                          const std::function<bool(const RedisFound&)>& asked);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_KEEP_H_
