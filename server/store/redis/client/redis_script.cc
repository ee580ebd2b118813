#include "server/store/redis/client/redis_script.h"

#include <openssl/sha.h>

#include <utility>

#include "absl/strings/escaping.h"

namespace routing_replay::server {
namespace {

std::string Sha1(absl::string_view text) {
  std::string digest(SHA_DIGEST_LENGTH, '\0');
  SHA1(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
       reinterpret_cast<unsigned char*>(digest.data()));
  return absl::BytesToHexString(digest);
}

}  // namespace

RedisScript::RedisScript(std::string source) : source_(std::move(source)), sha1_(Sha1(source_)) {}

RedisCommand RedisScript::Call(absl::Span<const std::string> keys) const {
  RedisCommand command({"EVALSHA", sha1_});
  command.Add(static_cast<int64_t>(keys.size()));
  for (const std::string& key : keys) command.Add(key);
  return command;
}

RedisCommand RedisScript::WithSource(RedisCommand call) const {
  call.Replace(0, "EVAL");
  call.Replace(1, source_);
  return call;
}

}  // namespace routing_replay::server
