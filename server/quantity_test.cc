#include "server/quantity.h"

#include <climits>

#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using std::chrono::milliseconds;

constexpr Bounds kAny = {0, INT64_MAX};

std::string WhyNotBytes(absl::string_view text, Bounds bounds = kAny) {
  const auto bytes = ParseBytes(text, bounds);
  EXPECT_EQ(bytes.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(bytes.status().message());
}

std::string WhyNotTime(absl::string_view text, Bounds bounds = kAny) {
  const auto time = ParseTime(text, bounds);
  EXPECT_EQ(time.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(time.status().message());
}

TEST(QuantityTest, WhatIsWrittenIsReadBack) {
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1536}, int64_t{3} << 20, int64_t{5} << 40}) {
    EXPECT_EQ(*ParseBytes(BytesText(bytes), kAny), bytes);
    EXPECT_EQ(*ParseTime(TimeText(milliseconds(bytes)), kAny), milliseconds(bytes));
  }
  EXPECT_EQ(BytesText(0), "0");
  EXPECT_EQ(BytesText(1536), "1536");
  EXPECT_EQ(BytesText(int64_t{3} << 30), "3GiB");
  EXPECT_EQ(TimeText(milliseconds(0)), "0s");
  EXPECT_EQ(TimeText(milliseconds(90000)), "90s");
  EXPECT_EQ(TimeText(std::chrono::hours(48)), "48h");
  EXPECT_EQ(*ParseTime("0", kAny), milliseconds(0));
  EXPECT_EQ(*ParseBytes("4 MiB", kAny), 4 << 20);
}

TEST(QuantityTest, OtherSpellingsAreToldTheRightOne) {
  for (const char* text : {"4Gi", "4GB", "4G", "4g", "4gib", "4 Gi"}) {
    EXPECT_EQ(WhyNotBytes(text), std::string("'") + text + "' is no size; write 4GiB");
  }
  EXPECT_EQ(WhyNotBytes("16Ki"), "'16Ki' is no size; write 16KiB");
  const std::string any_size = "a whole number of bytes, or of KiB, MiB, GiB or TiB, such as 4GiB";
  for (const char* text : {"", "GiB", "1.5GiB", "-1", "12parsecs"}) {
    EXPECT_EQ(WhyNotBytes(text), std::string("'") + text + "' is no size; write " + any_size);
  }
  EXPECT_EQ(WhyNotTime("10"), "'10' is no time; write 10s; or 10ms, 10m, 10h");
  for (const char* text : {"", "s", "1d", "1.5h", "1m30s"}) {
    EXPECT_EQ(WhyNotTime(text),
              std::string("'") + text + "' is no time; write a whole number of ms, s, m or h, such as 90s");
  }
}

TEST(QuantityTest, BoundsAreTold) {
  constexpr Bounds kSome = {1 << 20, 1 << 30};
  EXPECT_EQ(WhyNotBytes("1KiB", kSome), "'1KiB' is too little; at least 1MiB");
  EXPECT_EQ(WhyNotBytes("0", kSome), "'0' is too little; at least 1MiB");
  EXPECT_EQ(WhyNotBytes("1025MiB", kSome), "'1025MiB' is too much; at most 1GiB");
  EXPECT_EQ(WhyNotBytes("99999999999TiB", kSome), "'99999999999TiB' is too much; at most 1GiB");
  EXPECT_EQ(WhyNotBytes("99999999999999999999", kSome), "'99999999999999999999' is too much; at most 1GiB");
  constexpr Bounds kSomeOrNone = {1 << 20, 1 << 30, /*or_none=*/true};
  EXPECT_EQ(*ParseBytes("0", kSomeOrNone), 0);
  EXPECT_EQ(WhyNotBytes("1KiB", kSomeOrNone), "'1KiB' is too little; at least 1MiB, or 0 for no bound");
  EXPECT_EQ(WhyNotTime("0s", {1000, 60000}), "'0s' is too little; at least 1s");
  EXPECT_EQ(WhyNotTime("1h", {1000, 60000}), "'1h' is too much; at most 1m");
}

}  // namespace
}  // namespace routing_replay::server
