// Figures and lines as the page shows them.
#include "server/operations/page/human.h"
#include "server/operations/page/sparkline.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {
namespace {

using page::HumanBytes;
using page::HumanCount;
using page::HumanDuration;
using page::HumanRate;

TEST(HumanTest, Figures) {
  EXPECT_EQ(HumanCount(0), "0");
  EXPECT_EQ(HumanCount(999), "999");
  EXPECT_EQ(HumanCount(1234567), "1,234,567");
  EXPECT_EQ(HumanCount(-123456), "-123,456");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1.5 * (1 << 20)), "1.5 MiB");
  EXPECT_EQ(HumanBytes(std::int64_t{300} << 30), "300 GiB");
  EXPECT_EQ(HumanRate(0), "0");
  EXPECT_EQ(HumanRate(0.25), "0.25");
  EXPECT_EQ(HumanRate(13.44), "13.4");
  EXPECT_EQ(HumanRate(2309.7), "2,310");
  EXPECT_EQ(HumanDuration(std::chrono::milliseconds(999)), "0 s");
  EXPECT_EQ(HumanDuration(std::chrono::seconds(725)), "12 min 5 s");
  EXPECT_EQ(HumanDuration(std::chrono::hours(76)), "3 d 4 h");
}

TEST(SparklineTest, FillsItsBox) {
  EXPECT_EQ(MakeSparkline({}, 1).line, "");
  EXPECT_EQ(MakeSparkline({1}, 1).line, "");
  const Sparkline line = MakeSparkline({0, 5, 10}, 10);
  EXPECT_EQ(line.line, "M0.0 60.0L120.0 30.0L240.0 0.0");
  EXPECT_EQ(line.area, line.line + "L240 60L0 60Z");
}

TEST(SparklineTest, TopsAreRound) {
  EXPECT_EQ(RoundTop({}), 1);
  EXPECT_EQ(RoundTop({0, 0}), 1);
  EXPECT_DOUBLE_EQ(RoundTop({3, 17}), 20);
  EXPECT_DOUBLE_EQ(RoundTop({0.03}), 0.05);
  EXPECT_DOUBLE_EQ(RoundTop({700}), 1000);
  EXPECT_DOUBLE_EQ(RoundTop({50}), 50);
  EXPECT_DOUBLE_EQ(RoundBytesTop({30, 3000}), 5 * 1024);
  EXPECT_DOUBLE_EQ(RoundBytesTop({}), 1);
}

}  // namespace
}  // namespace routing_replay::testing
