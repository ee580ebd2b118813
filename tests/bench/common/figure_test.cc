#include "tests/bench/common/figure.h"

#include <gtest/gtest.h>

namespace routing_replay::bench {
namespace {

TEST(FigureTest, MedianAndRange) {
  const Spread odd = SpreadOf({3, 1, 9});
  EXPECT_EQ(odd.median, 3);
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.max, 9);
  EXPECT_EQ(SpreadOf({4, 1, 2, 9}).median, 3);
}

TEST(FigureTest, RatiosAreTakenInsideARound) {
  // The median of the ratios is not the ratio of the medians.
  const Figure figure = MakeFigure("x", "s", {2, 8, 3}, "tcp", {1, 2, 3});
  EXPECT_EQ(figure.ratio->median, 2);
  EXPECT_EQ(figure.ratio->max, 4);
  const nlohmann::json json = ToJson(figure);
  EXPECT_EQ(json["floor"], 2);
  EXPECT_EQ(json["median"], 3);
  EXPECT_EQ(json["ratio_min"], 1);
}

TEST(FigureTest, WithoutFloorThereIsNoRatio) {
  const nlohmann::json json = ToJson(MakeFigure("x", "MB", {5}));
  EXPECT_TRUE(json["floor"].is_null());
  EXPECT_TRUE(json["ratio"].is_null());
}

}  // namespace
}  // namespace routing_replay::bench
