#include "client/rrctl/report/route_scan.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/generator/latent_generator.h"
#include "tests/generator/statistics.h"

namespace routing_replay::client {
namespace {

using testing::GeneratedSample;
using testing::LatentConfig;
using testing::LatentGenerator;
using testing::Routes;

LatentConfig SmallConfig() {
  LatentConfig config = testing::Olmoe();
  config.layers = 3;
  return config;
}

// The rows `ranges` of a sample, layer by layer.
struct Decoded {
  Decoded(const Routes& routes, std::vector<RowRange> ranges) : rows(std::move(ranges)), layers(routes.layers) {
    for (int32_t layer = 0; layer < routes.layers; ++layer) {
      for (const RowRange range : rows) {
        for (int64_t row = range.begin; row < range.end; ++row) {
          const auto ids = routes.at(row, layer);
          layers[layer].insert(layers[layer].end(), ids.begin(), ids.end());
        }
      }
    }
  }
  DecodedRows view() const { return {rows, layers}; }
  std::vector<RowRange> rows;
  std::vector<std::vector<uint16_t>> layers;
};

TEST(RouteScanTest, NeighboursAreAsTheStatisticsOfTheGenerator) {
  const LatentConfig config = SmallConfig();
  const LatentGenerator generator(config, 1);
  const Geometry geometry = Geometry::Uniform(config.layers, config.num_experts, config.top_k);
  RouteScan scan(geometry, 0);
  std::vector<Routes> sequences;
  for (int64_t sample = 0; sample < 4; ++sample) {
    sequences.push_back(generator.Generate(sample, 100).routes);
    scan.BeginSample();
    for (const RowRange portion : SplitAtWindows({0, 100}, 32))
      scan.Add(Decoded(sequences.back(), {portion}).view(), {});
  }
  double shared = 0;
  for (int32_t ordinal = 0; ordinal < config.layers; ++ordinal) {
    EXPECT_EQ(scan.neighbours(ordinal).pairs, 4 * 99);
    shared += static_cast<double>(scan.neighbours(ordinal).shared_ids) / (4 * 99 * config.top_k) / config.layers;
  }
  EXPECT_NEAR(shared, testing::LagOverlap(sequences, 1), 1e-12);
}

TEST(RouteScanTest, RowsAroundAGapAreNoNeighbours) {
  const LatentConfig config = SmallConfig();
  const Routes routes = LatentGenerator(config, 1).Generate(0, 30).routes;
  const Geometry geometry = Geometry::Uniform(config.layers, config.num_experts, config.top_k);
  RouteScan scan(geometry, 0);
  scan.BeginSample();
  scan.Add(Decoded(routes, {{0, 5}, {7, 10}}).view(), {});
  scan.Add(Decoded(routes, {}).view(), {});
  scan.Add(Decoded(routes, {{12, 14}}).view(), {});
  EXPECT_EQ(scan.neighbours(0).pairs, 4 + 2 + 1);
}

TEST(RouteScanTest, BinsCountTheirRows) {
  const LatentConfig config = SmallConfig();
  const Routes routes = LatentGenerator(config, 2).Generate(0, 60).routes;
  const Geometry geometry = Geometry::Uniform(config.layers, config.num_experts, config.top_k);
  RouteScan scan(geometry, 2);
  const std::vector<BinnedRows> bins = {{{0, 20}, 1}, {{20, 33}, 0}, {{33, 50}, 1}};
  scan.BeginSample();
  scan.Add(Decoded(routes, {{0, 10}, {15, 30}}).view(), bins);
  scan.Add(Decoded(routes, {{30, 60}}).view(), bins);
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

}  // namespace
}  // namespace routing_replay::client
