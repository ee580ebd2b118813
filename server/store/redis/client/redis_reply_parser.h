// Bytes of a connection → replies, by hiredis's reader; large values go past it, straight to where they stay.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_REPLY_PARSER_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_REPLY_PARSER_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/store/redis/client/redis_reply.h"

struct redisReader;

namespace routing_replay::server {

// Not thread-safe. Memory grows with the bytes that came, never with a length or a count that was only announced.
// Arrays nest at most seven deep.
class RedisReplyParser {
 public:
  // `max_reply_bytes`: of one reply as it travels.
  explicit RedisReplyParser(size_t max_reply_bytes);
  RedisReplyParser(const RedisReplyParser&) = delete;
  RedisReplyParser& operator=(const RedisReplyParser&) = delete;

  // Takes the next bytes of the stream. Call Next until it gives nothing before the next Feed.
  // DATA_LOSS: they break the protocol or a limit; the stream is of no more use, and every later call says so again.
  absl::Status Feed(absl::string_view bytes);
  // Room for the next bytes of the stream where those of a value belong that is under way; what is put there is not fed
  // but told to Filled. Empty if the next bytes are to be fed. Valid until the next call.
  absl::Span<char> Direct();
  void Filled(size_t bytes);
  // The next whole reply, or nothing if more bytes are needed. Errors as Feed.
  absl::StatusOr<std::optional<RedisReply>> Next();
  // True if bytes came that belong to no reply handed out yet.
  bool has_rest() const { return rest_bytes_ > 0; }

 private:
  struct FreeReader {
    void operator()(redisReader* reader) const;
  };
  // A bulk string that is no element of an array.
  struct Value {
    RedisReply reply;
    size_t filled = 0;
    std::string end;  // As much as came of the line break after it.
  };
  absl::Status Break(absl::string_view what);
  absl::Status FeedReader(absl::string_view bytes);
  bool BeginValue(absl::string_view bytes);
  absl::Status FeedValue(absl::string_view& bytes);

  size_t max_reply_bytes_;
  std::unique_ptr<redisReader, FreeReader> reader_;
  std::optional<Value> value_;       // While it is under way, the reader is at the beginning of a reply.
  std::optional<RedisReply> ready_;  // A whole value, older than what the reader has.
  size_t rest_bytes_ = 0;            // Since the last whole reply.
  absl::Status broken_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_REPLY_PARSER_H_
