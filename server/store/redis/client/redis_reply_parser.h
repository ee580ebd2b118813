// Bytes of a connection → replies, by hiredis's reader.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_REPLY_PARSER_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_REPLY_PARSER_H_

#include <cstddef>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/store/redis/client/redis_reply.h"

struct redisReader;

namespace routing_replay {

struct RedisReplyLimits {
  // Of one reply as it travels: the bytes that may have come since the last whole reply.
  size_t bytes = size_t{256} << 20;
  // Arrays in arrays; hiredis's reader takes no more than 7 itself.
  int depth = 7;
};

// Not thread-safe. Memory grows with the bytes that came, never with a length or a count that was only announced.
class RedisReplyParser {
 public:
  explicit RedisReplyParser(const RedisReplyLimits& limits = {});
  RedisReplyParser(const RedisReplyParser&) = delete;
  RedisReplyParser& operator=(const RedisReplyParser&) = delete;

  // Takes the next bytes of the stream, at most 64 KiB at once for linear cost.
  // DATA_LOSS: they break the protocol or a limit; the stream is of no more use, and every later call says so again.
  absl::Status Feed(absl::string_view bytes);
  // The next whole reply, or nothing if more bytes are needed. Errors as Feed.
  absl::StatusOr<std::optional<RedisReply>> Next();
  // True if bytes came that belong to no reply handed out yet.
  bool has_rest() const { return unfinished_bytes_ > 0; }

 private:
  struct FreeReader {
    void operator()(redisReader* reader) const;
  };
  absl::Status Break(absl::string_view what);

  RedisReplyLimits limits_;
  std::unique_ptr<redisReader, FreeReader> reader_;
  size_t unfinished_bytes_ = 0;
  absl::Status broken_;
};

}  // namespace routing_replay

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_REPLY_PARSER_H_
