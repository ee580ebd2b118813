#include "tests/bench/scale/fit.h"

#include <gtest/gtest.h>

#include <cmath>

namespace routing_replay::bench {
namespace {

TEST(FitTest, AnExponentIsThatOfThePowerLaw) {
  for (const double exponent : {0.0, 0.5, 1.0, 2.0}) {
    std::vector<Measured> points;
    for (const double size : {3.0, 10.0, 500.0}) points.push_back({size, 7 * std::pow(size, exponent)});
    EXPECT_NEAR(Exponent(points), exponent, 1e-9);
  }
  // Computed by hand: logarithms to base 10 are (0, 0), (1, 1), (2, 1).
  EXPECT_NEAR(Exponent({{1, 1}, {10, 10}, {100, 10}}), 0.5, 1e-9);
}

TEST(FitTest, ALineIsFoundWhereThereIsOne) {
  const Line line = FitLine({{8, 2 + 0.5 * 8}, {64, 2 + 0.5 * 64}, {512, 2 + 0.5 * 512}});
  EXPECT_NEAR(line.fixed, 2, 1e-9);
  EXPECT_NEAR(line.each, 0.5, 1e-9);
  EXPECT_NEAR(line.At(10000), 5002, 1e-6);
}

TEST(FitTest, SmallCostsCountAsMuchAsLargeOnes) {
  // The line cost = size fits the first two points and is too low by 100 at the third. That is 100 times the first
  // cost, but only 10 % of the third one. A fit of absolute errors would give up the small costs for it.
  const Line line = FitLine({{1, 1}, {10, 10}, {1000, 1100}});
  EXPECT_NEAR(line.At(1), 1, 0.05);
  EXPECT_NEAR(line.At(1000), 1100, 55);
}

}  // namespace
}  // namespace routing_replay::bench
