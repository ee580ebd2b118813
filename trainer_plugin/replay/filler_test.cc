#include "trainer_plugin/replay/compact_id.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace routing_replay::trainer {
namespace {

// Shapes of released models with their usual expert-parallel groups, and extreme shapes.
const FillerShape kShapes[] = {{128, 8, 8},   {256, 8, 16}, {384, 8, 8},  {64, 6, 4},  {512, 22, 32},
                               {512, 10, 64}, {8, 8, 4},    {8, 6, 4},    {128, 8, 1}, {1, 1, 1},
                               {64, 64, 64},  {60, 4, 5},   {65535, 8, 3}};
constexpr int kLayers[] = {0, 1, 2, 47, 93};

TEST(Filler, IdsOfARowAreDistinctAndInRange) {
  for (const FillerShape& shape : kShapes) {
    for (int layer : kLayers) {
      for (int64_t ordinal = 0; ordinal < 300; ++ordinal) {
        std::set<int> ids;
        for (int k = 0; k < shape.top_k; ++k) ids.insert(FillerId(shape, ordinal, k, layer));
        ASSERT_EQ(static_cast<int>(ids.size()), shape.top_k);
        ASSERT_LT(*ids.rbegin(), shape.num_experts);
      }
    }
  }
}

TEST(Filler, LoadsRanksAlikeForAnyRowCount) {
  for (const FillerShape& shape : kShapes) {
    for (int layer : kLayers) {
      std::vector<int64_t> load(shape.ep_size, 0);
      for (int64_t ordinal = 0; ordinal < 300; ++ordinal) {
        for (int k = 0; k < shape.top_k; ++k) {
          ++load[FillerId(shape, ordinal, k, layer) / (shape.num_experts / shape.ep_size)];
        }
        const auto [low, high] = std::minmax_element(load.begin(), load.end());
        ASSERT_LE(*high - *low, 1) << "E " << shape.num_experts << " layer " << layer << " rows " << ordinal + 1;
      }
    }
  }
}

// The formula that compact_id.h states for filler ids, in 64 bits.
int64_t SlowFillerId(const FillerShape& shape, int64_t ordinal, int64_t slot, int64_t layer) {
  const int64_t per_rank = shape.num_experts / shape.ep_size;
  const int64_t a = ordinal * shape.top_k + slot + layer * shape.ep_size * shape.top_k;
  return a % shape.ep_size * per_rank + a / shape.ep_size % per_rank;
}

TEST(Filler, IsTheFormulaHoweverLargeItsTerms) {
  for (const FillerShape& shape : kShapes) {
    for (int64_t layer : {0, 1, 93, 65535, 1 << 20}) {
      for (int64_t ordinal : {0, 1, 299, 1 << 24, (1 << 25) - 1, 0x7FFFFFFF}) {
        for (int k = 0; k < shape.top_k; ++k) {
          ASSERT_EQ(FillerId(shape, static_cast<uint32_t>(ordinal), k, static_cast<uint32_t>(layer)),
                    SlowFillerId(shape, ordinal, k, layer));
        }
      }
    }
  }
}

// A layer term that is a multiple of E would send the same row to the same experts in every layer.
TEST(Filler, NeighbouringLayersDiffer) {
  const FillerShape shape{128, 8, 8};
  for (int layer = 0; layer < 47; ++layer) {
    for (int k = 0; k < shape.top_k; ++k) {
      EXPECT_NE(FillerId(shape, 0, k, layer), FillerId(shape, 0, k, layer + 1)) << "layer " << layer << " slot " << k;
    }
  }
}

}  // namespace
}  // namespace routing_replay::trainer
