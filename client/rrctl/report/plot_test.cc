#include "client/rrctl/report/plot.h"

#include <gtest/gtest.h>

namespace routing_replay::client {
namespace {

TEST(PlotTest, Steps) {
  EXPECT_EQ(LinearStep(0, 0, 1), 0);
  EXPECT_EQ(LinearStep(0.001, 0, 1), 1);
  EXPECT_EQ(LinearStep(0.5, 0, 1), 4);
  EXPECT_EQ(LinearStep(1, 0, 1), 8);
  EXPECT_EQ(LinearStep(9, 0, 1), 8);
  EXPECT_EQ(LinearStep(1, 1, 1), 0);
  EXPECT_EQ(RatioStep(1), 0);
  EXPECT_EQ(RatioStep(2), 3);
  EXPECT_EQ(RatioStep(0.5), -3);
  EXPECT_EQ(RatioStep(8), 8);
  EXPECT_EQ(RatioStep(100), 8);
  EXPECT_EQ(RatioStep(1e-9), -8);
}

TEST(PlotTest, HeatMapJoinsNeighboursOfOneStep) {
  const int steps[2][3] = {{1, 1, 0}, {-2, 9, 1}};
  const std::string svg = HeatMap(2, 3, [&](int row, int column) -> std::optional<int> {
    if (steps[row][column] == 9) return std::nullopt;
    return steps[row][column];
  });
  EXPECT_EQ(svg, R"(<svg viewBox="0 0 3 2" preserveAspectRatio="none" aria-hidden="true">)"
                 R"(<path class="m2" d="M0 1h1v1h-1z"/><path class="none" d="M1 1h1v1h-1z"/>)"
                 R"(<path class="s1" d="M0 0h2v1h-2zM2 1h1v1h-1z"/></svg>)");
}

TEST(PlotTest, LinesHaveGaps) {
  EXPECT_EQ(Lines({{"a", {0.0, 5.0, std::nullopt, 10.0, 20.0}}}, 0, 10, false),
            R"(<svg viewBox="0 0 5 100" preserveAspectRatio="none" aria-hidden="true">)"
            R"(<path class="line a" d="M0.5 100L1.5 50M3.5 0L4.5 0"/></svg>)");
}

TEST(PlotTest, BandsLieBetweenTheFirstTwoLines) {
  EXPECT_EQ(Lines({{"low", {0.0, 0.0}}, {"high", {5.0, 10.0}}}, 0, 10, true),
            R"(<svg viewBox="0 0 2 100" preserveAspectRatio="none" aria-hidden="true">)"
            R"(<path class="band" d="M0.5 50L1.5 0L1.5 100L0.5 100Z"/>)"
            R"(<path class="line low" d="M0.5 100L1.5 100"/><path class="line high" d="M0.5 50L1.5 0"/></svg>)");
}

TEST(PlotTest, APositionAloneIsADash) {
  EXPECT_EQ(Lines({{"low", {0.0}}, {"high", {5.0}}}, 0, 10, true),
            R"(<svg viewBox="0 0 1 100" preserveAspectRatio="none" aria-hidden="true">)"
            R"(<path class="band" d="M0.2 50h0.6L0.8 100h-0.6Z"/>)"
            R"(<path class="line low" d="M0.2 100h0.6"/><path class="line high" d="M0.2 50h0.6"/></svg>)");
}

TEST(PlotTest, BarsAreStacked) {
  EXPECT_EQ(Bars({{{1, 3}}, {{0, 0}}}, {"a", "b"}, 4),
            R"(<svg viewBox="0 0 2 100" preserveAspectRatio="none" aria-hidden="true">)"
            R"(<rect class="a" x="0.05" y="75" width="0.9" height="25"/>)"
            R"(<rect class="b" x="0.05" y="0" width="0.9" height="75"/></svg>)");
}

TEST(PlotTest, NothingIsAPictureToo) {
  const std::string empty = R"(<svg viewBox="0 0 1 100" preserveAspectRatio="none" aria-hidden="true"></svg>)";
  EXPECT_EQ(Lines({}, 0, 1, true), empty);
  EXPECT_EQ(Bars({}, {}, 1), empty);
}

TEST(PlotTest, RoundUp) {
  EXPECT_EQ(RoundUp(0), 1);
  EXPECT_EQ(RoundUp(1), 1);
  EXPECT_DOUBLE_EQ(RoundUp(1.01), 1.2);
  EXPECT_DOUBLE_EQ(RoundUp(0.023), 0.03);
  EXPECT_DOUBLE_EQ(RoundUp(0.3), 0.3);
  EXPECT_DOUBLE_EQ(RoundUp(900), 1000);
}

}  // namespace
}  // namespace routing_replay::client
