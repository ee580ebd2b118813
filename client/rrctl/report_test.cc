#include "client/rrctl/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/generator/latent_generator.h"

namespace routing_replay::client {
namespace {

TEST(ChooseSamplesTest, MoreIncludeFewer) {
  const std::vector<size_t> chosen = ChooseSamples(1000, 50);
  EXPECT_EQ(chosen.size(), 50u);
  EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
  EXPECT_LT(chosen.back(), 1000u);
  const std::vector<size_t> fewer = ChooseSamples(1000, 20);
  EXPECT_TRUE(std::includes(chosen.begin(), chosen.end(), fewer.begin(), fewer.end()));
  EXPECT_EQ(ChooseSamples(1000, 5000).size(), 1000u);
}

// The samples are neither all from the start nor all from the end: their mean position is in the middle.
TEST(ChooseSamplesTest, ItIsSpread) {
  double mean = 0;
  for (const size_t position : ChooseSamples(10000, 1000)) mean += static_cast<double>(position) / 1000;
  EXPECT_NEAR(mean, 5000, 500);
}

TEST(LoadBalanceTest, TheExtremes) {
  const LoadBalance even = BalanceOf({5, 5, 5, 5});
  EXPECT_EQ(even.max_to_mean, 1);
  EXPECT_EQ(even.entropy, 1);
  const LoadBalance one = BalanceOf({0, 8, 0, 0});
  EXPECT_EQ(one.max_to_mean, 4);
  EXPECT_EQ(one.entropy, 0);
  EXPECT_EQ(one.unused, 3);
  EXPECT_EQ(one.busiest, 1);
  EXPECT_EQ(one.busiest_count, 8);
  const LoadBalance none = BalanceOf({0, 0});
  EXPECT_FALSE(none.max_to_mean || none.entropy);
  EXPECT_EQ(BalanceOf({3}).entropy, 1);
}

// The reference computes the entropy choice by choice, as its definition says.
TEST(LoadBalanceTest, AgreesWithASlowReference) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<int64_t> counts(2 + random() % 100);
    std::vector<size_t> choices;
    for (int i = 0; i < 1000; ++i) choices.push_back(random() % counts.size() * (random() % 2));
    for (const size_t choice : choices) ++counts[choice];
    double nats = 0;
    for (const size_t choice : choices) nats -= std::log(static_cast<double>(counts[choice]) / 1000) / 1000;
    const LoadBalance balance = BalanceOf(counts);
    EXPECT_NEAR(*balance.entropy, nats / std::log(static_cast<double>(counts.size())), 1e-12);
    EXPECT_EQ(balance.choices, 1000);
    EXPECT_EQ(counts[balance.busiest], balance.busiest_count);
  }
}

SampleState Sample(const std::string& name, int64_t group, int64_t rows, std::vector<RowRange> unrecorded = {}) {
  SampleState state;
  state.sample = name;
  state.group = group;
  state.committed_rows = rows;
  state.unrecorded = std::move(unrecorded);
  return state;
}

TEST(SampleTablesTest, GroupsAreCountedWhereTheyBelong) {
  const std::vector<SampleState> samples = {Sample("a", -3, 10, {{2, 5}}), Sample("b", 7, 20), Sample("c", 7, 1)};
  const auto ranges = GroupRanges(samples);
  EXPECT_EQ(ranges, (std::vector<std::pair<int64_t, int64_t>>{{-3, -2}, {7, 8}}));
  const Document groups = GroupTable(samples, ranges);
  EXPECT_EQ(groups[0]["unrecorded_rows"], 3);
  EXPECT_EQ(groups[1]["samples"], 2);
  EXPECT_EQ(groups[1]["rows"], 21);
}

TEST(SampleTablesTest, ManyGroupsShareRanges) {
  std::vector<SampleState> samples;
  for (int64_t i = 0; i < 1000; ++i) samples.push_back(Sample("s", i * i, 1));
  const auto ranges = GroupRanges(samples);
  EXPECT_LE(ranges.size(), 64u);
  const Document groups = GroupTable(samples, ranges);
  int64_t counted = 0;
  for (const Document& group : groups) counted += group["samples"].get<int64_t>();
  EXPECT_EQ(counted, 1000);
  EXPECT_EQ(groups.back()["end"], 999 * 999 + 1);
  EXPECT_TRUE(GroupRanges({}).empty());
}

using testing::GeneratedSample;
using testing::LatentConfig;
using testing::LatentGenerator;
using testing::Routes;

LatentConfig SmallConfig() {
  LatentConfig config = testing::Olmoe();
  config.layers = 3;
  return config;
}

// The rows of a sample that lie in `ranges`, decoded layer by layer.
SampleRows Decoded(const Routes& routes, std::vector<RowRange> ranges) {
  SampleRows decoded{.rows = std::move(ranges), .layers = std::vector<std::vector<uint16_t>>(routes.layers)};
  for (int32_t layer = 0; layer < routes.layers; ++layer) {
    for (const RowRange range : decoded.rows) {
      for (int64_t row = range.begin; row < range.end; ++row) {
        const auto ids = routes.at(row, layer);
        decoded.layers[layer].insert(decoded.layers[layer].end(), ids.begin(), ids.end());
      }
    }
  }
  return decoded;
}

TEST(RouteScanTest, BinsCountTheirRows) {
  const LatentConfig config = SmallConfig();
  const Routes routes = LatentGenerator(config, 2).Generate(0, 60).routes;
  const Geometry geometry = Geometry::Uniform(config.layers, config.num_experts, config.top_k);
  RouteScan scan(geometry, 2);
  scan.Add(Decoded(routes, {{0, 10}, {15, 20}}), 1);
  scan.Add(Decoded(routes, {{20, 33}}), 0);
  scan.Add(Decoded(routes, {{33, 50}}), 1);
  std::vector<std::vector<std::vector<int64_t>>> expected(
      2, std::vector<std::vector<int64_t>>(config.layers, std::vector<int64_t>(config.num_experts)));
  std::vector<int64_t> rows(2);
  for (int64_t row = 0; row < 50; ++row) {
    if (row >= 10 && row < 15) continue;
    const size_t bin = row >= 20 && row < 33 ? 0 : 1;
    ++rows[bin];
    for (int32_t layer = 0; layer < config.layers; ++layer) {
      for (const uint16_t id : routes.at(row, layer)) ++expected[bin][layer][id];
    }
  }
  for (size_t bin = 0; bin < 2; ++bin) {
    EXPECT_EQ(scan.bin_rows(bin), rows[bin]);
    for (int32_t layer = 0; layer < config.layers; ++layer) EXPECT_EQ(scan.counts(bin, layer), expected[bin][layer]);
  }
}

TEST(RenderReportTest, NothingInTheDataEndsItsScript) {
  const std::string hostile = "</script><img src=x onerror=alert(2)>{{data}}\u2028";
  const std::string page = RenderReport({{"run", {{"run", hostile}}}}, "today");
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(open) + open.size();
  const Document data = Document::parse(page.substr(begin, page.find("</script>", begin) - begin));
  EXPECT_EQ(data["run"]["run"], hostile);
  EXPECT_EQ(data["made"], "today");
  EXPECT_EQ(page.find(hostile), page.npos);
}

}  // namespace
}  // namespace routing_replay::client
