#include "server/store/redis/client/redis_protocol.h"

#include <limits>

#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using Type = RedisReply::Type;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kLimit = 1 << 20;

RedisReply Text(Type type, std::string text) { return {.type = type, .text = std::move(text)}; }
RedisReply Integer(int64_t value) { return {.type = Type::kInteger, .integer = value}; }

std::string Encode(const RedisReply& reply) {
  switch (reply.type) {
    case Type::kNil:
      return "$-1\r\n";
    case Type::kInteger:
      return absl::StrCat(":", reply.integer, "\r\n");
    case Type::kBulk:
      return absl::StrCat("$", reply.text.size(), "\r\n", reply.text, "\r\n");
    case Type::kStatus:
      return absl::StrCat("+", reply.text, "\r\n");
    case Type::kError:
      return absl::StrCat("-", reply.text, "\r\n");
    case Type::kArray: {
      std::string text = absl::StrCat("*", reply.elements.size(), "\r\n");
      for (const RedisReply& element : reply.elements) text += Encode(element);
      return text;
    }
  }
  return "";
}

RedisReply Random(std::mt19937_64& random, int depth) {
  const auto type = static_cast<Type>(random() % (depth > 0 ? 6 : 5));
  std::string text(random() % 40, '\0');
  for (char& c : text) c = static_cast<char>(type == Type::kBulk ? random() : 'a' + random() % 26);
  if (type == Type::kNil) return {};
  if (type == Type::kInteger) return Integer(static_cast<int64_t>(random()));
  if (type != Type::kArray) return Text(type, text);
  RedisReply array{.type = Type::kArray};
  for (uint64_t n = random() % 5; n > 0; --n) array.elements.push_back(Random(random, depth - 1));
  return array;
}

std::vector<RedisReply> TakeAll(RedisReplyParser& parser) {
  std::vector<RedisReply> replies;
  while (true) {
    auto reply = parser.Next();
    EXPECT_OK(reply);
    if (!reply.ok() || !reply->has_value()) return replies;
    replies.push_back(**std::move(reply));
  }
}

TEST(RedisReplyParserTest, RandomRepliesInRandomPieces) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<RedisReply> sent;
    std::string stream;
    for (uint64_t n = random() % 6; n > 0; --n) {
      sent.push_back(Random(random, 6));
      stream += Encode(sent.back());
    }
    RedisReplyParser parser(kLimit);
    std::vector<RedisReply> got;
    for (size_t at = 0; at < stream.size();) {
      const size_t size = std::min<size_t>(stream.size() - at, 1 + random() % (trial % 2 == 0 ? 3 : 200));
      ASSERT_OK(parser.Feed(absl::string_view(stream).substr(at, size)));
      at += size;
      for (RedisReply& reply : TakeAll(parser)) got.push_back(std::move(reply));
    }
    ASSERT_EQ(got, sent);
    EXPECT_FALSE(parser.has_rest());
  }
}

TEST(RedisReplyParserTest, LargeValuesInRandomPieces) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<RedisReply> sent;
    std::string stream;
    for (int n = 0; n < 8; ++n) {
      std::string text(random() % 3 == 0 ? 4094 + random() % 4 : random() % 60000, '\0');
      for (char& c : text) c = static_cast<char>(random());
      RedisReply value = Text(Type::kBulk, std::move(text));
      if (random() % 4 == 0) value = {.type = Type::kArray, .elements = {value, Integer(1)}};
      sent.push_back(random() % 4 == 0 ? Random(random, 2) : value);
      stream += Encode(sent.back());
    }
    RedisReplyParser parser(kLimit);
    std::vector<RedisReply> got;
    for (absl::string_view left = stream; !left.empty();) {
      const size_t limit = 1 + random() % (trial % 2 == 0 ? 3000 : 100000);
      const size_t size = std::min(limit, left.size());
      ASSERT_OK(parser.Feed(left.substr(0, size)));
      left.remove_prefix(size);
      for (RedisReply& reply : TakeAll(parser)) got.push_back(std::move(reply));
    }
    ASSERT_TRUE(got == sent) << trial;
    EXPECT_FALSE(parser.has_rest());
  }
}

TEST(RedisReplyParserTest, ValuesMustEndWhereTheyShould) {
  for (const size_t size : {3, 5000}) {
    for (const size_t piece : {1, 4096, 100000}) {
      std::string stream = Encode(Text(Type::kBulk, std::string(size, 'x'))) + ":1\r\n";
      stream[stream.size() - 5] = 'x';
      RedisReplyParser parser(kLimit);
      bool broken = false;
      for (size_t at = 0; at < stream.size() && !broken; at += piece) {
        broken = !parser.Feed(absl::string_view(stream).substr(at, piece)).ok() || !parser.Next().ok();
      }
      EXPECT_TRUE(broken) << size << " " << piece;
    }
  }
}

TEST(RedisReplyParserTest, ExtremeIntegers) {
  RedisReplyParser parser(kLimit);
  ASSERT_OK(parser.Feed(":9223372036854775807\r\n:-9223372036854775808\r\n"));
  EXPECT_THAT(TakeAll(parser),
              ElementsAre(Integer(std::numeric_limits<int64_t>::max()), Integer(std::numeric_limits<int64_t>::min())));
}

TEST(RedisReplyParserTest, BrokenStreamsAreRejected) {
  for (const char* stream :
       {"HTTP/1.1 400 Bad Request\r\n", "$x\r\n", "$4098\n\r\n", "$04098\r\n", "$-2\r\n", "*-2\r\n", ":\r\n", ":1x\r\n",
        "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", "\r\n"}) {
    RedisReplyParser parser(kLimit);
    ASSERT_OK(parser.Feed(stream));
    EXPECT_TRUE(absl::IsDataLoss(parser.Next().status())) << stream;
  }
}

TEST(RedisReplyParserTest, AnnouncedSizesTakeNoMemory) {
  RedisReplyParser parser(kLimit);
  ASSERT_OK(parser.Feed("*2147483647\r\n*2147483647\r\n$9223372036854775000\r\nabc"));
  const auto reply = parser.Next();
  // The parser may reject these bytes or wait for more. It must not reserve the announced sizes, but a few MiB at most.
  EXPECT_FALSE(reply.ok() && reply->has_value());
}

TEST(RedisReplyParserTest, LimitIsOfOneReply) {
  RedisReplyParser parser(100);
  const std::string reply = Encode(Text(Type::kBulk, std::string(80, 'x')));
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK(parser.Feed(reply));
    EXPECT_EQ(TakeAll(parser).size(), 1);
  }
  ASSERT_OK(parser.Feed("$200\r\n" + std::string(80, 'x')));
  EXPECT_THAT(TakeAll(parser), ElementsAre());
  const absl::Status status = parser.Feed(std::string(80, 'x'));
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("100 bytes"));
}

}  // namespace
}  // namespace routing_replay::server
