#include "client/rrctl/human.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using std::chrono::milliseconds;

TEST(HumanTest, Bytes) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(HumanBytes(int64_t{5} << 40), "5.0 TiB");
  EXPECT_EQ(HumanBytes(int64_t{5000} << 40), "5000.0 TiB");
}

TEST(HumanTest, Durations) {
  EXPECT_EQ(HumanDuration(milliseconds(0)), "0 ms");
  EXPECT_EQ(HumanDuration(milliseconds(999)), "999 ms");
  EXPECT_EQ(HumanDuration(milliseconds(3250)), "3.2 s");
  EXPECT_EQ(HumanDuration(milliseconds(59999)), "59.9 s");
  EXPECT_EQ(HumanDuration(std::chrono::seconds(312)), "5m 12s");
  EXPECT_EQ(HumanDuration(std::chrono::minutes(185)), "3h 5m");
  EXPECT_EQ(HumanDuration(std::chrono::hours(51)), "2d 3h");
}

TEST(HumanTest, Timestamps) {
  EXPECT_EQ(Timestamp(std::chrono::system_clock::from_time_t(0) + milliseconds(125)), "1970-01-01T00:00:00.125Z");
}

TEST(HumanTest, Intervals) {
  EXPECT_EQ(*ParseInterval("2"), milliseconds(2000));
  EXPECT_EQ(*ParseInterval("0.5"), milliseconds(500));
  EXPECT_EQ(*ParseInterval("500ms"), milliseconds(500));
  EXPECT_EQ(*ParseInterval("1m30s"), milliseconds(90000));
  for (const char* bad : {"", "x", "0", "-1", "2x", "nan", "inf", "1e9", "25h", "1us"}) {
    EXPECT_EQ(ParseInterval(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(HumanTest, Counts) {
  EXPECT_EQ(HumanCount(0), "0");
  EXPECT_EQ(HumanCount(999), "999");
  EXPECT_EQ(HumanCount(-1000), "-1,000");
  EXPECT_EQ(HumanCount(1234567), "1,234,567");
}

}  // namespace
}  // namespace routing_replay
