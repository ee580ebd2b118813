#include "server/store/redis/redis_layout.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {

absl::Status ClaimRedisLayout(RedisCluster& cluster, const RedisKeys& keys, Clock::Time deadline) {
  const std::string key = keys.Layout();
  const std::string own = absl::StrCat(kRedisLayout);
  const RedisResult noted = cluster.ExecuteOne({.command = RedisCommand({"SETNX", key, own}), .key = key}, deadline);
  if (!noted.reply.ok()) return noted.reply.status();
  RedisResult got = cluster.ExecuteOne({.command = RedisCommand({"GET", key}), .key = key}, deadline);
  if (!got.reply.ok()) return got.reply.status();
  const absl::StatusOr<std::string> layout = TakeText(*std::move(got.reply));
  if (!layout.ok()) return layout.status();
  if (*layout == own) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("Redis: what is there under ", key, " has layout '", *layout,
                                                    "'; this server knows ", own,
                                                    ": start the version that wrote it, or state another ?prefix="));
}

}  // namespace routing_replay::server
