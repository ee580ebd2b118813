#include "tests/generator/latent_generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/generator/prng.h"
#include "tests/generator/statistics.h"

namespace routing_replay::testing {
namespace {

// The expected statistics of a model's routes. The test compares averages over several seeds with them, because a
// single draw of router and topic varies a lot.
struct Band {
  LatentConfig config;
  double entropy, lag1, lag8;
};

class LatentGeneratorTest : public ::testing::TestWithParam<Band> {};

TEST_P(LatentGeneratorTest, StatisticsAreThoseOfTheModel) {
  const Band& band = GetParam();
  constexpr int kModels = 6;
  double entropy = 0, lag1 = 0, lag8 = 0;
  for (int seed = 1; seed <= kModels; ++seed) {
    const LatentGenerator generator(band.config, seed);
    const std::vector<Routes> sequence = {generator.Generate(0, 256).routes};
    entropy += MeanEntropy(sequence) / kModels;
    lag1 += LagOverlap(sequence, 1) / kModels;
    lag8 += LagOverlap(sequence, 8) / kModels;
  }
  EXPECT_NEAR(entropy, band.entropy, .08);
  EXPECT_NEAR(lag1, band.lag1, .08);
  EXPECT_NEAR(lag8, band.lag8, .08);
}

TEST_P(LatentGeneratorTest, RowsHoldDifferentExpertsInRange) {
  const LatentGenerator generator(GetParam().config, 3);
  const GeneratedSample sample = generator.Generate(1, 40);
  for (int64_t row = 0; row < 40; ++row) {
    for (int32_t layer = 0; layer < sample.routes.layers; ++layer) {
      const auto ids = sample.routes.at(row, layer);
      const std::set<uint16_t> different(ids.begin(), ids.end());
      ASSERT_EQ(different.size(), ids.size());
      ASSERT_LT(*different.rbegin(), sample.routes.num_experts);
    }
  }
}

// The entropies are those of single sequences, each of which has only one topic.
INSTANTIATE_TEST_SUITE_P(Models, LatentGeneratorTest,
                         ::testing::Values(Band{Qwen3_30B_A3B(), .75, .32, .24}, Band{KimiLinear(), .78, .32, .18},
                                           Band{KimiK2(), .78, .32, .18}, Band{GptOss20B(), .79, .46, .36},
                                           Band{Olmoe(), .88, .43, .27}),
                         [](const auto& info) {
                           std::string name = info.param.config.name;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !isalnum(c); }, '_');
                           return name;
                         });

TEST(LatentGenerator, IsDeterministicAndAPrefixOfLongerSamples) {
  const LatentGenerator generator(Olmoe(), 7);
  const GeneratedSample shorter = generator.Generate(5, 20), longer = LatentGenerator(Olmoe(), 7).Generate(5, 33);
  EXPECT_TRUE(std::equal(shorter.routes.ids.begin(), shorter.routes.ids.end(), longer.routes.ids.begin()));
  EXPECT_TRUE(std::equal(shorter.tokens.begin(), shorter.tokens.end(), longer.tokens.begin()));
  EXPECT_EQ(shorter.tokens.size(), 21u);
  EXPECT_NE(generator.Generate(6, 20).routes.ids, shorter.routes.ids);
  EXPECT_NE(LatentGenerator(Olmoe(), 8).Generate(5, 20).routes.ids, shorter.routes.ids);
}

// The generated numbers must never change, because the expected values of other tests depend on them.
TEST(LatentGenerator, GivesTheSameNumbersOnEveryMachine) {
  const GeneratedSample sample = LatentGenerator(Qwen3_30B_A3B(), 1).Generate(0, 4);
  uint64_t digest = 0;
  for (const uint16_t id : sample.routes.ids) digest = DeriveSeed(digest, id);
  for (const uint32_t token : sample.tokens) digest = DeriveSeed(digest, token);
  EXPECT_EQ(digest, 12962870024320472675u);
}

TEST(Prng, NormalHasMeanZeroAndVarianceOne) {
  Prng prng(1);
  double sum = 0, squares = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double x = prng.Normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0, .02);
  EXPECT_NEAR(squares / kDraws, 1, .02);
}

TEST(LognormalLengths, StayInBoundsAroundTheMedian) {
  const std::vector<int64_t> lengths = LognormalLengths(1, 1001, 1000, .6, 200, 4000);
  std::vector<int64_t> sorted = lengths;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_GE(sorted.front(), 200);
  EXPECT_LE(sorted.back(), 4000);
  EXPECT_NEAR(static_cast<double>(sorted[500]), 1000, 100);
  EXPECT_EQ(lengths, LognormalLengths(1, 1001, 1000, .6, 200, 4000));
}

}  // namespace
}  // namespace routing_replay::testing
