#include "server/store/redis/client/redis_reply_parser.h"

#include <hiredis/read.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/redis/client/decimal.h"

namespace routing_replay::server {
namespace {

constexpr char kLineBreak[] = "\r\n";
// Values that go past the reader: what is smaller is copied more cheaply than looked at.
constexpr size_t kSmallestValue = 4096;
constexpr size_t kLargestValue = size_t{4} << 20;
constexpr size_t kLongestHeader = 10;

// hiredis builds a reply from the outside in. A new element is the last one of its parent, and whatever stands before
// it is whole, so that growing the parent's list moves nothing that the reader still points to.
RedisReply* Place(const redisReadTask* task, RedisReply::Type type) {
  if (task->parent == nullptr) return std::make_unique<RedisReply>(RedisReply{.type = type}).release();
  auto* parent = static_cast<RedisReply*>(task->parent->obj);
  parent->elements.push_back({.type = type});
  return &parent->elements.back();
}

// The reader calls this when it has the line break after the text, too, but of a bulk string it does not look at it.
// Nothing is its sign for an error.
void* CreateString(const redisReadTask* task, char* text, size_t size) {
  if (std::memcmp(text + size, kLineBreak, 2) != 0) return nullptr;
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
  const bool at_beginning = rest_bytes_ == 0;
  rest_bytes_ += bytes.size();
  if (value_) {
    if (auto status = FeedValue(bytes); !status.ok() || value_) return status;
  } else if (!at_beginning) {
    return FeedReader(bytes);
  }
  return BeginValue(bytes) ? absl::OkStatus() : FeedReader(bytes);
}

absl::Status RedisReplyParser::FeedReader(absl::string_view bytes) {
  if (redisReaderFeed(reader_.get(), bytes.data(), bytes.size()) != REDIS_OK) return Break(reader_->errstr);
  return absl::OkStatus();
}

// `bytes` begin a reply. False: it is none for this, or it is all there already.
bool RedisReplyParser::BeginValue(absl::string_view bytes) {
  const size_t end = bytes.substr(0, kLongestHeader).find(kLineBreak);
  if (end == absl::string_view::npos || bytes[0] != '$') return false;
  const auto announced = ParseDecimal(bytes.substr(1, end - 1));
  const auto size = static_cast<size_t>(announced.value_or(0));
  if (size < kSmallestValue || size > kLargestValue) return false;
  const absl::string_view part = bytes.substr(end + 2);
  if (size > max_reply_bytes_ - end - 4 || part.size() >= size) return false;
  value_.emplace(Value{.reply = {.type = RedisReply::Type::kBulk}});
  value_->reply.text.resize(size);
  std::memcpy(value_->reply.text.data(), part.data(), part.size());
  value_->filled = part.size();
  return true;
}

absl::Status RedisReplyParser::FeedValue(absl::string_view& bytes) {
  const absl::Span<char> room = Direct();
  const size_t part = std::min(room.size(), bytes.size());
  std::memcpy(room.data(), bytes.data(), part);
  value_->filled += part;
  bytes.remove_prefix(part);
  const size_t end = std::min(2 - value_->end.size(), bytes.size());
  value_->end.append(bytes.data(), end);
  bytes.remove_prefix(end);
  if (value_->end.size() < 2) return absl::OkStatus();
  if (value_->end != kLineBreak) return Break("a value without its end");
  ready_ = std::move(value_->reply);
  value_.reset();
  rest_bytes_ = bytes.size();
  return absl::OkStatus();
}

absl::Span<char> RedisReplyParser::Direct() {
  if (!broken_.ok() || !value_) return {};
  return absl::MakeSpan(value_->reply.text.data() + value_->filled, value_->reply.text.size() - value_->filled);
}

void RedisReplyParser::Filled(size_t bytes) {
  value_->filled += bytes;
  rest_bytes_ += bytes;
}

absl::StatusOr<std::optional<RedisReply>> RedisReplyParser::Next() {
  if (!broken_.ok()) return broken_;
  if (ready_) return std::exchange(ready_, std::nullopt);
  if (value_) return std::nullopt;
  void* object = nullptr;
  if (redisReaderGetReply(reader_.get(), &object) != REDIS_OK) {
    return Break(reader_->err == REDIS_ERR_OOM ? "a value without its end" : reader_->errstr);
  }
  if (object == nullptr) return std::nullopt;
  rest_bytes_ = reader_->len - reader_->pos;
  const std::unique_ptr<RedisReply> reply(static_cast<RedisReply*>(object));
  return std::optional<RedisReply>(std::move(*reply));
}

}  // namespace routing_replay::server
