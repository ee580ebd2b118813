#include "server/operations/page/sparkline.h"

#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

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
