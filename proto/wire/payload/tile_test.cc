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
  for (int round = 0; round < 300; ++round) {
    const bool gaps = random() % 2 == 0;  // Without, columns lie side by side and in order.
    const auto count = static_cast<int64_t>(random() % 20);
    std::vector<TileColumn> columns(random() % 30);
    int64_t stride = static_cast<int64_t>(random() % 5);
    const int64_t usual = std::vector<int64_t>{4, 8, 16, 6}[random() % 4];
    for (TileColumn& column : columns) {
      column.bytes = gaps && random() % 8 == 0 ? static_cast<int64_t>(1 + random() % 20) : usual;
      column.offset = stride;
      stride += column.bytes + (gaps ? static_cast<int64_t>(random() % 3) : 0);
    }
    if (gaps) std::shuffle(columns.begin(), columns.end(), random);
    std::vector<uint8_t> rows(count * stride);
    for (uint8_t& byte : rows) byte = static_cast<uint8_t>(random());
    std::vector<std::vector<uint8_t>> planes;
    for (TileColumn& column : columns) column.plane = planes.emplace_back(count * column.bytes).data();
    Tile(rows.data(), stride, count, columns);
    for (size_t i = 0; i < columns.size(); ++i) {
      std::vector<uint8_t> expected;
      for (int64_t row = 0; row < count; ++row) {
        const auto from = rows.begin() + row * stride + columns[i].offset;
        expected.insert(expected.end(), from, from + columns[i].bytes);
      }
      EXPECT_EQ(planes[i], expected) << "round " << round << " column " << i;
    }
  }
}

TEST(TileTest, EachPlaneHoldsItsBytesOfEveryRow) { testing::ForEachSimdTarget(CompareRandomTiles); }

}  // namespace
}  // namespace routing_replay
