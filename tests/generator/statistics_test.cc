#include "tests/generator/statistics.h"

#include <gtest/gtest.h>

namespace routing_replay::testing {
namespace {

// One layer, K = 2 of 4 experts.
Routes Sequence(std::vector<uint16_t> ids) { return {static_cast<int64_t>(ids.size()) / 2, 1, 2, 4, std::move(ids)}; }

TEST(Statistics, OverlapCountsSharedExpertsInAnyOrder) {
  const std::vector<Routes> sequences = {Sequence({0, 1, 1, 0, 2, 1}), Sequence({0, 1, 2, 3})};
  EXPECT_DOUBLE_EQ(LagOverlap(sequences, 1), (2 + 1 + 0) / 6.0);
  EXPECT_DOUBLE_EQ(LagOverlap(sequences, 2), 1 / 2.0);
  EXPECT_DOUBLE_EQ(LagOverlap(sequences, 3), 0);
}

TEST(Statistics, EntropyOfConstantAndOfUniformChoices) {
  std::vector<uint16_t> uniform;
  for (int i = 0; i < 1000; ++i) uniform.insert(uniform.end(), {0, 1, 2, 3});
  const std::vector<Routes> even = {Sequence(uniform)};
  EXPECT_NEAR(MeanEntropy(even), 1, 1e-3);
  const std::vector<Routes> half = {Sequence(std::vector<uint16_t>{0, 1, 1, 0})};
  // The entropy of two equally frequent ids is ln 2. The Miller–Madow correction adds 1 / (2 · 4), and the sum is
  // divided by ln 4.
  EXPECT_NEAR(LayerEntropy(half, 0), (0.693147 + 0.125) / 1.386294, 1e-5);
}

}  // namespace
}  // namespace routing_replay::testing
