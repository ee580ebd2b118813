#include "routing_replay/trainer/expert_parallel.h"

#include <numeric>
#include <random>

#include "tests/support/status_matchers.h"
#include "trainer_plugin/replay/compact_id.h"
#include "trainer_plugin/replay/filler.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using ::testing::ElementsAre;

TEST(ExpertParallel, ContiguousBlocks) {
  ASSERT_OK_AND_ASSIGN(const ExpertParallel experts, ExpertParallel::Create(128, 8));
  EXPECT_EQ(experts.experts_per_rank(), 16);
  EXPECT_EQ(experts.FindPlace(0), (ExpertPlace{0, 0}));
  EXPECT_EQ(experts.FindPlace(17), (ExpertPlace{1, 1}));
  EXPECT_EQ(experts.FindPlace(127), (ExpertPlace{7, 15}));
  EXPECT_EQ(experts.FindPlace(128), std::nullopt);
  EXPECT_EQ(experts.FindPlace(-1), std::nullopt);
  for (const ExpertPlace& place : {ExpertPlace{8, 0}, ExpertPlace{-1, 0}, ExpertPlace{0, 16}, ExpertPlace{0, -1}}) {
    EXPECT_EQ(experts.FindExpert(place), std::nullopt);
  }
  for (int32_t expert = 0; expert < 128; ++expert) {
    EXPECT_EQ(experts.FindExpert(*experts.FindPlace(expert)), expert);
  }
}

TEST(ExpertParallel, Refusals) {
  for (const auto& [experts, ep_size] : {std::pair(0, 1), std::pair(8, 0), std::pair(8, 3), std::pair(8, 16)}) {
    EXPECT_THAT(ExpertParallel::Create(experts, ep_size), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  }
}

TEST(LoadOfRows, CountsIdsAndFiller) {
  const Geometry geometry = Geometry::Uniform(2, 8, 2);
  const std::vector<uint8_t> ids = {0, 1, 2, 7, 1, 0};
  ASSERT_OK_AND_ASSIGN(const ExpertRankLoad load, LoadOfRows(geometry, 0, 4, ids, 6));
  EXPECT_THAT(load.replayed, ElementsAre(4, 1, 0, 1));
  EXPECT_THAT(load.filler, ElementsAre(3, 3, 3, 3));
  EXPECT_EQ(load.largest(), 7);
  EXPECT_DOUBLE_EQ(load.imbalance(), 7 * 4 / 18.0);
  ASSERT_OK_AND_ASSIGN(const ExpertRankLoad none, LoadOfRows(geometry, 0, 4, {}, 0));
  EXPECT_EQ(none.imbalance(), 1);
}

// E, K and so the width differ by layer, and filler is that of the layer.
TEST(LoadOfRows, AgreesWithCountingOneByOne) {
  const Geometry geometry =
      *Geometry::Create({.num_layers = 4, .moe_layer_ids = {1, 3}, .num_experts = {64, 512}, .top_k = {6, 22}});
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const int32_t ordinal = static_cast<int32_t>(random() % 2);
    const int32_t ep_size = 1 << random() % 6;
    const LayerRouting& layer = geometry.layer(ordinal);
    const int64_t rows = static_cast<int64_t>(random() % 40);
    const int64_t filler_rows = static_cast<int64_t>(random() % 40);
    std::vector<uint8_t> ids(rows * layer.top_k * layer.id_bytes());
    ExpertRankLoad expected{std::vector<int64_t>(ep_size), std::vector<int64_t>(ep_size)};
    for (int64_t i = 0; i < rows * layer.top_k; ++i) {
      const uint32_t id = static_cast<uint32_t>(random() % layer.num_experts);
      StoreId(ids.data(), layer.id_bytes(), i, id);
      ++expected.replayed[id / (layer.num_experts / ep_size)];
    }
    for (int64_t i = 0; i < filler_rows * layer.top_k; ++i) {
      const FillerShape shape{layer.num_experts, layer.top_k, ep_size};
      const int32_t slot = static_cast<int32_t>(i % layer.top_k);
      ++expected.filler[FillerId(shape, i / layer.top_k, slot, ordinal) / (layer.num_experts / ep_size)];
    }
    ASSERT_OK_AND_ASSIGN(const ExpertRankLoad load, LoadOfRows(geometry, ordinal, ep_size, ids, filler_rows));
    EXPECT_EQ(load.replayed, expected.replayed);
    EXPECT_EQ(load.filler, expected.filler);
    const auto [least, most] = std::minmax_element(load.filler.begin(), load.filler.end());
    EXPECT_LE(*most - *least, 1);
  }
}

TEST(LoadOfRows, Refusals) {
  const Geometry geometry =
      *Geometry::Create({.num_layers = 4, .moe_layer_ids = {3}, .num_experts = {6}, .top_k = {2}});
  const std::vector<uint8_t> ids = {0, 1, 2, 6};
  const auto out_of_range = LoadOfRows(geometry, 0, 2, ids, 0);
  EXPECT_THAT(out_of_range, Fails(absl::StatusCode::kInvalidArgument, Reason::kIdRange));
  EXPECT_EQ(GetErrorDetail(out_of_range.status())->row, 1);
  EXPECT_EQ(GetErrorDetail(out_of_range.status())->layer, 3);
  const std::vector<uint8_t> half = {0, 1, 2};
  EXPECT_THAT(LoadOfRows(geometry, 0, 2, half, 0), Fails(absl::StatusCode::kInvalidArgument, Reason::kLength));
  for (const int64_t rows : {int64_t{-1}, int64_t{1} << 40}) {
    EXPECT_THAT(LoadOfRows(geometry, 0, 2, {}, rows), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  }
  for (const int32_t ordinal : {-1, 1}) {
    EXPECT_THAT(LoadOfRows(geometry, ordinal, 2, {}, 0), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  }
  EXPECT_THAT(LoadOfRows(geometry, 0, 4, {}, 0), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

}  // namespace
}  // namespace routing_replay::trainer
