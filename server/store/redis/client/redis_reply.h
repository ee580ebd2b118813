// What a Redis server answered, as a plain owned value (RESP2).
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_REPLY_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_REPLY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace routing_replay::server {

struct RedisReply {
  enum class Type { kNil, kInteger, kBulk, kStatus, kError, kArray };

  Type type = Type::kNil;
  int64_t integer = 0;               // kInteger.
  std::string text;                  // kBulk (any bytes), kStatus and kError ("MOVED 3999 host:port"); else empty.
  std::vector<RedisReply> elements;  // kArray.

  bool is_nil() const { return type == Type::kNil; }
  bool is_error() const { return type == Type::kError; }
  friend bool operator==(const RedisReply&, const RedisReply&) = default;
};
const char* RedisTypeName(RedisReply::Type type);

// The reply as the type that the command promises; INTERNAL naming both types (never the content) if it is another.
absl::StatusOr<int64_t> TakeInteger(const RedisReply& reply);
// Of a bulk or a status.
absl::StatusOr<std::string> TakeText(RedisReply reply);
absl::StatusOr<std::vector<RedisReply>> TakeArray(RedisReply reply);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_REPLY_H_
