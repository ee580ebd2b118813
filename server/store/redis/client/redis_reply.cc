#include "server/store/redis/client/redis_reply.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

using Type = RedisReply::Type;

absl::Status NotThe(const char* wanted, const RedisReply& reply) {
  return absl::InternalError(absl::StrCat("Redis answered with ", RedisTypeName(reply.type), " instead of ", wanted));
}

}  // namespace

const char* RedisTypeName(Type type) {
  switch (type) {
    case Type::kNil:
      return "nil";
    case Type::kInteger:
      return "an integer";
    case Type::kBulk:
      return "a bulk string";
    case Type::kStatus:
      return "a status";
    case Type::kError:
      return "an error";
    case Type::kArray:
      return "an array";
  }
  return "an unknown type";
}

absl::StatusOr<int64_t> TakeInteger(const RedisReply& reply) {
  if (reply.type != Type::kInteger) return NotThe("an integer", reply);
  return reply.integer;
}

absl::StatusOr<std::string> TakeText(RedisReply reply) {
  if (reply.type != Type::kBulk && reply.type != Type::kStatus) return NotThe("a string", reply);
  return std::move(reply.text);
}

absl::StatusOr<std::vector<RedisReply>> TakeArray(RedisReply reply) {
  if (reply.type != Type::kArray) return NotThe("an array", reply);
  return std::move(reply.elements);
}

}  // namespace routing_replay::server
