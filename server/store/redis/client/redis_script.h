// A Lua script, sent by its hash.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_SCRIPT_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_SCRIPT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/store/redis/client/redis_command.h"

namespace routing_replay::server {

// Immutable; thread-safe. Answer from the script by values, not by redis.error_reply: errors become statuses, and which
// of them are the script's own is then only seen in their text.
class RedisScript {
 public:
  explicit RedisScript(std::string source);

  const std::string& source() const { return source_; }
  const std::string& sha1() const { return sha1_; }  // 40 hexadecimal digits.
  // EVALSHA sha1 |keys| keys…; add the script's other arguments to it.
  RedisCommand Call(absl::Span<const std::string> keys) const;
  // The same call with the source in place of the hash.
  RedisCommand WithSource(RedisCommand call) const;

 private:
  std::string source_;
  std::string sha1_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_SCRIPT_H_
