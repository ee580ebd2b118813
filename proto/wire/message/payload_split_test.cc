#include "proto/wire/message/payload_split.h"

#include <random>

#include "proto/wire/message/byte_chain.h"
#include "proto/wire/message/testing/message_test_support.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using google::protobuf::UnknownFieldSet;
using testing::Below;
using testing::Fails;
using testing::Random;
using testing::RandomBytes;
using testing::RandomChain;
using testing::ToBytes;

TEST(ByteChainTest, FlattenGivesTheBytes) {
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const std::string bytes = RandomBytes(random, Below(random, 300));
    const ByteChain chain = RandomChain(random, bytes);
    ASSERT_EQ(chain.size(), bytes.size());
    Buffer scratch;
    const auto flat = chain.Flatten(scratch);
    EXPECT_EQ(std::string(flat.begin(), flat.end()), bytes);
  }
}

TEST(ByteChainTest, ACursorGivesAllBytesInOrder) {
  Random random(3);
  for (int i = 0; i < 300; ++i) {
    const std::string bytes = RandomBytes(random, Below(random, 300));
    const ByteChain chain = RandomChain(random, bytes);
    ChainCursor cursor(chain);
    std::string read;
    Buffer scratch;
    while (cursor.left() > 0) {
      EXPECT_EQ(cursor.position(), read.size());
      const size_t size = Below(random, std::min<size_t>(cursor.left(), 60) + 1);
      std::string part(size, '\0');
      switch (Below(random, 3)) {
        case 0:
          cursor.CopyTo({reinterpret_cast<uint8_t*>(part.data()), size});
          break;
        case 1: {
          const auto taken = cursor.Take(size, scratch);
          part.assign(taken.begin(), taken.end());
          break;
        }
        default:
          cursor.Skip(size);
          part = bytes.substr(read.size(), size);
      }
      read += part;
    }
    EXPECT_EQ(read, bytes);
  }
}

TEST(ByteChainTest, OneSpanIsFlattenedWithoutACopy) {
  const std::string bytes = "abc";
  const ByteChain chain({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  Buffer scratch;
  EXPECT_EQ(static_cast<const void*>(chain.Flatten(scratch).data()), bytes.data());
  EXPECT_TRUE(scratch.empty());
}

std::string Bytes(const UnknownFieldSet& fields) {
  std::string bytes;
  fields.SerializeToString(&bytes);
  return bytes;
}

TEST(PayloadSplitTest, ThePayloadStandsAnywhereAndIsNotCopied) {
  Random random(2);
  for (int i = 0; i < 300; ++i) {
    const std::string payload = RandomBytes(random, Below(random, 500));
    UnknownFieldSet before, after, whole;
    before.AddVarint(1, random());
    before.AddLengthDelimited(3, RandomBytes(random, Below(random, 50)));
    if (Below(random, 2)) {
      after.AddFixed32(20, 1);
      after.AddFixed64(21, random());
    }
    whole.AddLengthDelimited(15, payload);
    const std::string bytes = Bytes(before) + Bytes(whole) + Bytes(after);
    const ByteChain chain = RandomChain(random, bytes);
    ASSERT_OK_AND_ASSIGN(const SplitMessage split, SplitPayload(chain, 15));
    EXPECT_EQ(split.header, Bytes(before) + Bytes(after));
    EXPECT_EQ(ToBytes(split.payload), payload);
    for (const auto span : split.payload.spans()) {
      EXPECT_GE(reinterpret_cast<const char*>(span.data()), bytes.data());
      EXPECT_LE(reinterpret_cast<const char*>(span.data() + span.size()), bytes.data() + bytes.size());
    }
  }
}

TEST(PayloadSplitTest, OfSeveralPayloadsTheLastCounts) {
  UnknownFieldSet w;
  w.AddLengthDelimited(15, "first");
  w.AddVarint(1, 7);
  w.AddLengthDelimited(15, "second");
  const std::string bytes = Bytes(w);
  Random random(3);
  ASSERT_OK_AND_ASSIGN(const SplitMessage split, SplitPayload(RandomChain(random, bytes), 15));
  EXPECT_EQ(ToBytes(split.payload), "second");
  EXPECT_EQ(split.header, std::string("\x08\x07"));
}

TEST(PayloadSplitTest, MalformedTagsAreRejected) {
  Random random(4);
  const auto rejects = [&](const std::string& bytes) {
    const ByteChain chain = RandomChain(random, bytes);
    EXPECT_THAT(SplitPayload(chain, 15).status(), Fails(absl::StatusCode::kInvalidArgument, Reason::kEncoding));
  };
  rejects("\x80");  // An incomplete tag.
  rejects(
      "\x7a\x05"
      "abc");                                               // Longer than the message.
  rejects("\x7a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");  // 2^64 - 1 bytes.
  rejects("\x0b");                                          // A group.
  rejects("\x09\x01");                                      // A cut fixed64.
  rejects(std::string("\x08") + std::string(11, '\xff'));   // A varint of more than ten bytes.
}

}  // namespace
}  // namespace routing_replay
