#include "client/rrctl/report/version_bins.h"

#include <gtest/gtest.h>

namespace routing_replay::client {
namespace {

SampleState Sample(std::vector<WeightSpan> weights) {
  SampleState state;
  state.weights = std::move(weights);
  return state;
}

TEST(VersionBinsTest, NumbersThenLabels) {
  const SampleState a = Sample({{{0, 5}, 7, "x"}, {{5, 9}, -1, "step-b"}, {{9, 10}, -1, ""}});
  const SampleState b = Sample({{{0, 5}, 7, "y"}, {{5, 6}, 3, ""}});
  const VersionBins bins({&a, &b});
  ASSERT_EQ(bins.size(), 4u);
  EXPECT_EQ(bins.label(0), "3");
  EXPECT_EQ(bins.label(1), "7");
  EXPECT_EQ(bins.label(2), "unknown");
  EXPECT_EQ(bins.label(3), "step-b");
  const std::vector<BinnedRows> rows = bins.BinsOf(a);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].bin, 1u);
  EXPECT_EQ(rows[1].bin, 3u);
  EXPECT_EQ(rows[2].bin, 2u);
  EXPECT_EQ(rows[1].rows, (RowRange{5, 9}));
}

TEST(VersionBinsTest, ManyShareBins) {
  std::vector<SampleState> samples;
  for (int64_t version = 0; version < 100; ++version) samples.push_back(Sample({{{0, 1}, version, ""}}));
  std::vector<const SampleState*> all;
  for (const SampleState& sample : samples) all.push_back(&sample);
  const VersionBins bins(all);
  EXPECT_LE(bins.size(), 32u);
  EXPECT_EQ(bins.label(0), "0 – 3");
  EXPECT_EQ(bins.BinsOf(samples[5])[0].bin, 1u);
  EXPECT_EQ(VersionBins({}).size(), 0u);
}

}  // namespace
}  // namespace routing_replay::client
