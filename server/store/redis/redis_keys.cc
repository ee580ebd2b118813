#include "server/store/redis/redis_keys.h"

#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

int Number(Producer producer) { return static_cast<int>(producer); }

}  // namespace

std::string RedisKeys::Tagged(absl::string_view tag, absl::string_view rest) const {
  return absl::StrCat(prefix_, ":{", tag, "}:", rest);
}

RedisSampleKeys::RedisSampleKeys(const RedisKeys& keys, absl::string_view life, int64_t handle)
    : base_(keys.Tagged(absl::StrCat(life, "/", absl::Hex(handle)), "")) {}

std::string RedisSampleKeys::Manifest(Producer producer) const { return absl::StrCat(base_, "m", Number(producer)); }

std::string RedisSampleKeys::Chunk(Producer producer, uint64_t block, int64_t chunk) const {
  return absl::StrCat(base_, Number(producer), ":", absl::Hex(block), ":", chunk);
}

RedisBucketKeys::RedisBucketKeys(const RedisKeys& keys, absl::string_view life, int bucket)
    : base_(keys.Tagged(absl::StrCat(life, "/b", bucket), "")) {}

std::string RedisBucketKeys::Names(Producer producer) const { return absl::StrCat(base_, "z", Number(producer)); }

std::string RedisBucketKeys::Entries(Producer producer) const { return absl::StrCat(base_, "e", Number(producer)); }

std::string RedisBucketKeys::Due(Producer producer) const { return absl::StrCat(base_, "d", Number(producer)); }

}  // namespace routing_replay::server
