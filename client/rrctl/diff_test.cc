#include "client/rrctl/diff.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace routing_replay::client {
namespace {

// The rows of a sample as the slow reference keeps them: row → layer → ids.
using Record = std::map<int64_t, std::vector<std::vector<uint16_t>>>;

SampleRows Decoded(const Geometry& geometry, const Record& record) {
  SampleRows decoded{.layers = std::vector<std::vector<uint16_t>>(geometry.num_moe_layers())};
  for (const auto& [row, choices] : record) {
    AppendMerged(decoded.rows, {row, row + 1});
    for (size_t i = 0; i < choices.size(); ++i) {
      decoded.layers[i].insert(decoded.layers[i].end(), choices[i].begin(), choices[i].end());
    }
  }
  return decoded;
}

std::vector<uint16_t> RandomChoice(std::mt19937_64& random, const LayerRouting& layer) {
  std::vector<uint16_t> ids(layer.num_experts);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint16_t>(i);
  std::shuffle(ids.begin(), ids.end(), random);
  ids.resize(layer.top_k);
  return ids;
}

Record RandomRecord(std::mt19937_64& random, const Geometry& geometry, int64_t rows) {
  Record record;
  for (int64_t row = 0; row < rows; ++row) {
    if (random() % 5 == 0) continue;
    for (const LayerRouting& layer : geometry.layers()) record[row].push_back(RandomChoice(random, layer));
  }
  return record;
}

// Returns a copy of `record` in which some choices have another order or other experts, and some rows are missing.
Record Changed(std::mt19937_64& random, const Geometry& geometry, const Record& record) {
  Record changed;
  for (const auto& [row, choices] : record) {
    if (random() % 7 == 0) continue;
    changed[row] = choices;
    for (size_t i = 0; i < choices.size(); ++i) {
      const uint64_t what = random() % 8;
      if (what == 0) std::reverse(changed[row][i].begin(), changed[row][i].end());
      if (what == 1) changed[row][i] = RandomChoice(random, geometry.layer(static_cast<int32_t>(i)));
    }
  }
  return changed;
}

void ExpectAsReference(const Geometry& geometry, const Record& a, const Record& b, const RouteComparison& seen) {
  int64_t rows = 0, differing = 0, only_a = 0, only_b = 0;
  std::vector<LayerDifferences> layers(geometry.num_moe_layers());
  std::optional<std::pair<int64_t, int32_t>> first;
  for (const auto& [row, choices] : a) {
    if (!b.contains(row)) {
      ++only_a;
      continue;
    }
    ++rows;
    bool differs = false;
    for (size_t i = 0; i < choices.size(); ++i) {
      const std::vector<uint16_t>& other = b.at(row)[i];
      ++layers[i].choices;
      if (choices[i] == other) continue;
      differs = true;
      if (!first) first = {row, static_cast<int32_t>(i)};
      const std::set<uint16_t> in_a(choices[i].begin(), choices[i].end()), in_b(other.begin(), other.end());
      ++(in_a == in_b ? layers[i].order : layers[i].set);
    }
    differing += differs;
  }
  for (const auto& [row, choices] : b) only_b += !a.contains(row);
  EXPECT_EQ(seen.rows(), rows);
  EXPECT_EQ(seen.differing_rows(), differing);
  EXPECT_EQ(seen.only_a(), only_a);
  EXPECT_EQ(seen.only_b(), only_b);
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerDifferences& layer = seen.layers()[i];
    EXPECT_EQ(layer.choices, layers[i].choices);
    EXPECT_EQ(layer.order, layers[i].order);
    EXPECT_EQ(layer.set, layers[i].set);
  }
  ASSERT_EQ(seen.first().has_value(), first.has_value());
  if (!first) return;
  EXPECT_EQ(seen.first()->row, first->first);
  EXPECT_EQ(seen.first()->ordinal, first->second);
  EXPECT_EQ(seen.first()->a, a.at(first->first)[first->second]);
  EXPECT_EQ(seen.first()->b, b.at(first->first)[first->second]);
}

TEST(RouteComparisonTest, AgreesWithASlowReference) {
  const auto geometry =
      Geometry::Create({.num_layers = 9, .moe_layer_ids = {1, 4, 8}, .num_experts = {8, 300, 16}, .top_k = {2, 8, 1}});
  for (int trial = 0; trial < 50; ++trial) {
    std::mt19937_64 random(trial);
    const Record a = RandomRecord(random, *geometry, 40);
    const Record b = trial % 10 == 0 ? a : Changed(random, *geometry, a);
    // Pass the rows to the comparison in two portions, because the command diff reads samples in portions.
    RouteComparison seen(*geometry);
    const int64_t cut = static_cast<int64_t>(random() % 40);
    for (const bool high : {false, true}) {
      Record part_a, part_b;
      for (const auto& [row, choices] : a) {
        if ((row >= cut) == high) part_a[row] = choices;
      }
      for (const auto& [row, choices] : b) {
        if ((row >= cut) == high) part_b[row] = choices;
      }
      seen.Add(Decoded(*geometry, part_a), Decoded(*geometry, part_b));
    }
    ExpectAsReference(*geometry, a, b, seen);
  }
}

TEST(RouteComparisonTest, OrderIsApartFromSets) {
  const Geometry geometry = Geometry::Uniform(2, 8, 3);
  const SampleRows a = Decoded(geometry, {{5, {{0, 1, 2}, {3, 4, 5}}}, {6, {{0, 1, 2}, {3, 4, 5}}}});
  const SampleRows b = Decoded(geometry, {{5, {{0, 1, 2}, {5, 4, 3}}}, {6, {{5, 6, 7}, {3, 4, 6}}}});
  RouteComparison seen(geometry);
  seen.Add(a, b);
  EXPECT_EQ(seen.differing_rows(), 2);
  EXPECT_EQ(seen.layers()[1].order, 1);
  EXPECT_EQ(seen.layers()[1].set, 1);
  EXPECT_EQ(seen.layers()[0].set, 1);
  ASSERT_TRUE(seen.first());
  EXPECT_EQ(seen.first()->row, 5);
  EXPECT_EQ(seen.first()->ordinal, 1);
  EXPECT_TRUE(seen.first()->same_set);
}

}  // namespace
}  // namespace routing_replay::client
