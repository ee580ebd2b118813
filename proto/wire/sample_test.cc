#include "routing_replay/wire/sample.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;

TEST(SampleIdTest, EveryByteAtEveryPlace) {
  const absl::string_view allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/-";
  for (int c = 0; c < 256; ++c) {
    for (size_t place = 0; place < 3; ++place) {
      std::string id = "abc";
      id[place] = static_cast<char>(c);
      EXPECT_EQ(CheckId(id, "sample").ok(), allowed.find(static_cast<char>(c)) != absl::string_view::npos) << c;
    }
  }
}

TEST(SampleIdTest, OneToA128Bytes) {
  EXPECT_THAT(CheckId("", "sample"), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  for (const size_t size : {1, 2, 127, 128}) EXPECT_OK(CheckId(std::string(size, 'a'), "sample"));
  for (const size_t size : {129, 130, 100000}) {
    EXPECT_THAT(CheckId(std::string(size, 'a'), "sample"), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  }
}

TEST(SampleIdTest, TheErrorNamesTheField) {
  const absl::Status status = CheckId("a b", "begin.run");
  EXPECT_EQ(GetErrorDetail(status).value_or(ErrorDetail{}).field, "begin.run");
  EXPECT_EQ(status.message().find("begin.run: "), 0u) << status;
}

TEST(SampleIdTest, TheErrorNamesWhatIsWrong) {
  const auto ends_with = [](const std::string& id, absl::string_view end) {
    return absl::EndsWith(CheckId(id, "run").message(), end);
  };
  EXPECT_TRUE(ends_with("a b", "got ' ' at byte 2"));
  EXPECT_TRUE(ends_with("abc\n", "got '\\n' at byte 4"));
  EXPECT_TRUE(ends_with("", "got 0 bytes"));
  EXPECT_TRUE(ends_with(std::string(129, ' '), "got 129 bytes"));
}

TEST(SampleIdTest, HandlesAreTheLowBitsOfXxh64) {
  // Published values of XXH64 with seed 0: "" is EF46DB3751D8E999, "a" D24EC4F1A98C6E5B, "abc" 44BC2CF5AD770999. A
  // handle has only the low 56 bits, so the first byte is missing below.
  EXPECT_EQ(SampleHandle(""), 0x46DB3751D8E999);
  EXPECT_EQ(SampleHandle("a"), 0x4EC4F1A98C6E5B);
  EXPECT_EQ(SampleHandle("abc"), 0xBC2CF5AD770999);
  EXPECT_EQ(BareHandle(int64_t{3} << kHandleBits | SampleHandle("a")), SampleHandle("a"));
}

TEST(SampleIdTest, ASampleHasItsIdOrItsHandleAsName) {
  EXPECT_EQ(DescribeSample("a/1", 5), "a/1");
  EXPECT_EQ(DescribeSample("", 5), "with handle 5");
}

TEST(SampleIdTest, ProducerNames) {
  EXPECT_STREQ(ProducerName(Producer::kRollout), "rollout");
  EXPECT_STREQ(ProducerName(Producer::kTrainer), "trainer");
}

}  // namespace
}  // namespace routing_replay
