#include "client/rrctl/report/bins.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "client/rrctl/report/sample_choice.h"

namespace routing_replay::client {
namespace {

using Runs = std::vector<std::pair<size_t, size_t>>;

TEST(EvenRunsTest, CutsWhatDoesNotFit) {
  EXPECT_EQ(EvenRuns(0, 3), Runs());
  EXPECT_EQ(EvenRuns(3, 3), (Runs{{0, 1}, {1, 2}, {2, 3}}));
  EXPECT_EQ(EvenRuns(7, 3), (Runs{{0, 3}, {3, 6}, {6, 7}}));
}

TEST(HistogramTest, WidthsAreRound) {
  EXPECT_TRUE(MakeHistogram({}, 10).counts.empty());
  const Histogram one = MakeHistogram({7, 7}, 10);
  EXPECT_EQ(one.begin, 7);
  EXPECT_EQ(one.counts, std::vector<int64_t>{2});
  for (const auto& [most, width] : std::vector<std::pair<int64_t, int64_t>>{
           {9, 1}, {10, 2}, {19, 2}, {20, 5}, {49, 5}, {50, 10}, {100, 20}, {4096, 500}, {131072, 20000}}) {
    EXPECT_EQ(MakeHistogram({0, most}, 10).width, width) << most;
  }
}

TEST(HistogramTest, EveryValueIsInItsRange) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 30; ++trial) {
    std::vector<int64_t> values(1 + random() % 200);
    for (int64_t& value : values) value = static_cast<int64_t>(random() % (trial * 1000 + 1));
    const Histogram histogram = MakeHistogram(values, 24);
    EXPECT_LE(histogram.counts.size(), 24u);
    for (size_t i = 0; i < histogram.counts.size(); ++i) {
      const int64_t begin = histogram.begin + static_cast<int64_t>(i) * histogram.width;
      int64_t expected = 0;
      for (const int64_t value : values) expected += begin <= value && value < begin + histogram.width;
      EXPECT_EQ(histogram.counts[i], expected);
    }
  }
}

TEST(ChooseSamplesTest, TheSameWhateverTheOrder) {
  std::vector<int64_t> handles(1000);
  std::iota(handles.begin(), handles.end(), -500);
  const std::vector<size_t> chosen = ChooseSamples(handles, 50, 1);
  EXPECT_EQ(chosen.size(), 50u);
  EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
  std::vector<int64_t> backwards(handles.rbegin(), handles.rend());
  std::vector<size_t> there = ChooseSamples(backwards, 50, 1);
  for (size_t& position : there) position = 999 - position;
  EXPECT_EQ(std::vector<size_t>(there.rbegin(), there.rend()), chosen);
  EXPECT_NE(ChooseSamples(handles, 50, 2), chosen);
  const std::vector<size_t> fewer = ChooseSamples(handles, 20, 1);
  EXPECT_TRUE(std::includes(chosen.begin(), chosen.end(), fewer.begin(), fewer.end()));
  EXPECT_EQ(ChooseSamples(handles, 5000, 1).size(), 1000u);
}

// Not the first, not the last: the mean position is in the middle.
TEST(ChooseSamplesTest, ItIsSpread) {
  std::vector<int64_t> handles(10000);
  std::iota(handles.begin(), handles.end(), 0);
  double mean = 0;
  for (const size_t position : ChooseSamples(handles, 1000, 5)) mean += static_cast<double>(position) / 1000;
  EXPECT_NEAR(mean, 5000, 500);
}

}  // namespace
}  // namespace routing_replay::client
