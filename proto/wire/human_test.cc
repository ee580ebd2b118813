#include "proto/wire/human.h"

#include <gtest/gtest.h>

#include "proto/wire/human.h"

namespace routing_replay {
namespace {

using std::chrono::milliseconds;

TEST(HumanTest, Bytes) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1023.6), "1.0 KiB");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(-1536), "-1.5 KiB");
  EXPECT_EQ(HumanBytes(99.97 * 1024), "100 KiB");
  EXPECT_EQ(HumanBytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(HumanBytes(300.0 * (1 << 30)), "300 GiB");
  EXPECT_EQ(HumanBytes(5e6 * (1 << 30)), "4.8 PiB");
}

TEST(HumanTest, Counts) {
  EXPECT_EQ(HumanCount(0), "0");
  EXPECT_EQ(HumanCount(999), "999");
  EXPECT_EQ(HumanCount(-123456), "-123,456");
  EXPECT_EQ(HumanCount(1234567), "1,234,567");
  EXPECT_EQ(Counted(0, "sample"), "0 samples");
  EXPECT_EQ(Counted(1, "sample"), "1 sample");
  EXPECT_EQ(Counted(1234, "sample"), "1,234 samples");
}

TEST(HumanTest, Numbers) {
  EXPECT_EQ(HumanNumber(0), "0");
  EXPECT_EQ(HumanNumber(0.25), "0.25");
  EXPECT_EQ(HumanNumber(0.012345), "0.0123");
  EXPECT_EQ(HumanNumber(3.6656472986748216), "3.67");
  EXPECT_EQ(HumanNumber(-13.44), "-13.4");
  EXPECT_EQ(HumanNumber(99.97), "100");
  EXPECT_EQ(HumanNumber(2309.7), "2,310");
  EXPECT_EQ(HumanNumber(1e20), "1e+20");
}

TEST(HumanTest, Durations) {
  EXPECT_EQ(HumanDuration(milliseconds(0)), "0 ms");
  EXPECT_EQ(HumanDuration(milliseconds(999)), "999 ms");
  EXPECT_EQ(HumanDuration(milliseconds(3250)), "3.2 s");
  EXPECT_EQ(HumanDuration(milliseconds(59999)), "59.9 s");
  EXPECT_EQ(HumanDuration(std::chrono::seconds(312)), "5 min 12 s");
  EXPECT_EQ(HumanDuration(std::chrono::minutes(185)), "3 h 5 min");
  EXPECT_EQ(HumanDuration(std::chrono::hours(51)), "2 d 3 h");
}

TEST(HumanTest, Timestamps) {
  EXPECT_EQ(Timestamp(std::chrono::system_clock::from_time_t(0) + milliseconds(125)), "1970-01-01T00:00:00.125Z");
}

}  // namespace
}  // namespace routing_replay
