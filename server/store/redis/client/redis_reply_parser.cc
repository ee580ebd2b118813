#include "server/store/redis/client/redis_reply_parser.h"

#include <hiredis/read.h>

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay {
namespace {

// hiredis builds a reply from the outside in. A new element is the last one of its parent, and whatever stands before
// it is whole, so that growing the parent's list moves nothing that the reader still points to.
RedisReply* Place(const redisReadTask* task, RedisReply::Type type) {
  if (task->parent == nullptr) return std::make_unique<RedisReply>(RedisReply{.type = type}).release();
  auto* parent = static_cast<RedisReply*>(task->parent->obj);
  parent->elements.push_back({.type = type});
  return &parent->elements.back();
}

void* CreateString(const redisReadTask* task, char* text, size_t size) {
  const auto type = task->type == REDIS_REPLY_ERROR    ? RedisReply::Type::kError
                    : task->type == REDIS_REPLY_STATUS ? RedisReply::Type::kStatus
                                                       : RedisReply::Type::kBulk;
  RedisReply* reply = Place(task, type);
  reply->text.assign(text, size);
  return reply;
}

void* CreateArray(const redisReadTask* task, int) { return Place(task, RedisReply::Type::kArray); }

void* CreateInteger(const redisReadTask* task, long long value) {
  RedisReply* reply = Place(task, RedisReply::Type::kInteger);
  reply->integer = value;
  return reply;
}

void* CreateNil(const redisReadTask* task) { return Place(task, RedisReply::Type::kNil); }

// Called for roots only: elements are owned by their parents.
void FreeObject(void* reply) { const std::unique_ptr<RedisReply> owned(static_cast<RedisReply*>(reply)); }

redisReplyObjectFunctions kFunctions = {CreateString, CreateArray, CreateInteger, CreateNil, FreeObject};

// Kept between replies so that values of a chunk's size do not make it grow anew each time.
constexpr size_t kKeptBuffer = size_t{4} << 20;

}  // namespace

void RedisReplyParser::FreeReader::operator()(redisReader* reader) const { redisReaderFree(reader); }

RedisReplyParser::RedisReplyParser(size_t max_reply_bytes)
    : max_reply_bytes_(max_reply_bytes), reader_(redisReaderCreateWithFunctions(&kFunctions)) {
  if (reader_ != nullptr) {
    reader_->maxbuf = kKeptBuffer;
  } else {
    broken_ = absl::ResourceExhaustedError("no memory for a Redis connection");
  }
}

absl::Status RedisReplyParser::Break(absl::string_view what) {
  broken_ = absl::DataLossError(absl::StrCat("not the Redis protocol: ", what));
  return broken_;
}

absl::Status RedisReplyParser::Feed(absl::string_view bytes) {
  if (!broken_.ok()) return broken_;
  if (bytes.size() > max_reply_bytes_ - rest_bytes_) {
    return Break(absl::StrCat("a reply above the limit of ", max_reply_bytes_, " bytes"));
  }
  if (redisReaderFeed(reader_.get(), bytes.data(), bytes.size()) != REDIS_OK) return Break(reader_->errstr);
  rest_bytes_ += bytes.size();
  return absl::OkStatus();
}

absl::StatusOr<std::optional<RedisReply>> RedisReplyParser::Next() {
  if (!broken_.ok()) return broken_;
  void* object = nullptr;
  if (redisReaderGetReply(reader_.get(), &object) != REDIS_OK) return Break(reader_->errstr);
  if (object == nullptr) return std::nullopt;
  rest_bytes_ = reader_->len - reader_->pos;
  const std::unique_ptr<RedisReply> reply(static_cast<RedisReply*>(object));
  return std::optional<RedisReply>(std::move(*reply));
}

}  // namespace routing_replay
