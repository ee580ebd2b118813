#include "proto/wire/payload/tile.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "proto/wire/simd_targets_test_util.h"

namespace routing_replay {
namespace {

void CompareRandomTiles() {
  std::mt19937_64 random(11);
  for (int64_t bytes = 1; bytes <= 128; ++bytes) {
    for (int round = 0; round < 10; ++round) {
      const auto count = static_cast<int64_t>(random() % 20);
      const auto layers = static_cast<int64_t>(random() % 30);
      const int64_t stride = layers * bytes + static_cast<int64_t>(random() % 3);
      std::vector<uint8_t> rows(count * stride);
      for (uint8_t& byte : rows) byte = static_cast<uint8_t>(random());
      std::vector<std::vector<uint8_t>> planes(layers, std::vector<uint8_t>(count * bytes));
      std::vector<uint8_t*> to;
      for (std::vector<uint8_t>& plane : planes) to.push_back(plane.data());
      Tile(rows.data(), stride, count, bytes, to);
      for (int64_t i = 0; i < layers; ++i) {
        std::vector<uint8_t> expected;
        for (int64_t row = 0; row < count; ++row) {
          const auto from = rows.begin() + row * stride + i * bytes;
          expected.insert(expected.end(), from, from + bytes);
        }
        EXPECT_EQ(planes[i], expected) << layers << " layers of " << bytes << " bytes, layer " << i;
      }
    }
  }
}

TEST(TileTest, EachPlaneHoldsItsBytesOfEveryRow) { testing::ForEachSimdTarget(CompareRandomTiles); }

}  // namespace
}  // namespace routing_replay
