#include "proto/wire/block/id_check.h"

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "proto/wire/simd_targets_test_util.h"

namespace routing_replay {
namespace {

// Legal ids, [rows][K].
std::vector<uint8_t> LegalIds(const LayerRouting& layer, int64_t rows, std::mt19937_64& random) {
  std::vector<uint8_t> bytes;
  for (int64_t row = 0; row < rows; ++row) {
    std::set<uint16_t> seen;
    while (static_cast<int32_t>(seen.size()) < layer.top_k) {
      const auto id = static_cast<uint16_t>(random() % layer.num_experts);
      if (!seen.insert(id).second) continue;
      bytes.push_back(static_cast<uint8_t>(id));
      if (layer.id_bytes() == 2) bytes.push_back(static_cast<uint8_t>(id >> 8));
    }
  }
  return bytes;
}

void SetId(const LayerRouting& layer, std::vector<uint8_t>& bytes, int64_t index, uint16_t id) {
  std::memcpy(bytes.data() + index * layer.id_bytes(), &id, layer.id_bytes());
}

uint16_t GetId(const LayerRouting& layer, const std::vector<uint8_t>& bytes, int64_t index) {
  uint16_t id = 0;
  std::memcpy(&id, bytes.data() + index * layer.id_bytes(), layer.id_bytes());
  return id;
}

TEST(IdCheckTest, FindsFaultsAndNothingElse) {
  testing::ForEachSimdTarget([] {
    std::mt19937_64 random(5);
    for (const auto& [experts, k] : std::vector<std::pair<int, int>>{{1, 1},
                                                                     {2, 2},
                                                                     {8, 2},
                                                                     {60, 4},
                                                                     {64, 6},
                                                                     {128, 8},
                                                                     {300, 4},
                                                                     {300, 2},
                                                                     {40, 16},
                                                                     {200, 10},
                                                                     {256, 8},
                                                                     {257, 8},
                                                                     {512, 22},
                                                                     {896, 64}}) {
      const LayerRouting layer{.layer_id = 3, .num_experts = experts, .top_k = k};
      for (const int64_t rows : {0, 1, 5, 64, 256}) {
        const std::vector<uint8_t> legal = LegalIds(layer, rows, random);
        const auto are_legal = [&layer](const std::vector<uint8_t>& ids) {
          return IdsLegal(ids, layer.id_bytes(), layer.top_k, layer.num_experts);
        };
        EXPECT_TRUE(are_legal(legal)) << experts << " " << k << " " << rows;
        EXPECT_FALSE(FindIdFault(layer, legal, rows));
        if (rows == 0) continue;
        const auto row = static_cast<int64_t>(random() % rows);
        if (k > 1) {
          std::vector<uint8_t> bytes = legal;
          const auto slot = static_cast<int64_t>(random() % k);
          const auto other = static_cast<int64_t>((slot + 1 + random() % (k - 1)) % k);
          SetId(layer, bytes, row * k + other, GetId(layer, legal, row * k + slot));
          EXPECT_FALSE(are_legal(bytes)) << experts << " " << k << " " << rows;
          EXPECT_FALSE(FindIdFault(layer, bytes, rows));
        }
        if (experts == 256) continue;  // Every u8 is an id.
        std::vector<uint8_t> bytes = legal;
        SetId(layer, bytes, row * k, static_cast<uint16_t>(experts));
        EXPECT_FALSE(are_legal(bytes));
        const auto fault = FindIdFault(layer, bytes, rows);
        ASSERT_TRUE(fault.has_value());
        EXPECT_EQ(fault->row, row);
        EXPECT_EQ(fault->id, experts);
      }
    }
  });
}

}  // namespace
}  // namespace routing_replay
