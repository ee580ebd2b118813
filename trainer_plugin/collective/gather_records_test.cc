// Ranks of tensor, context and pipeline parallelism in threads, whose routers see the samples' routes as the reference
// lays them out.
#include "routing_replay/trainer/gather_records.h"

#include <array>
#include <thread>

#include "tests/reference/token_layout_reference.h"
#include "tests/support/random_layouts.h"
#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"
#include "trainer_plugin/replay/compact_id.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using routing_replay::testing::MakeRandomRoutes;
using routing_replay::testing::RandomLayouts;
using routing_replay::testing::RandomRoutes;

Collective::Deadline InAMinute() { return std::chrono::steady_clock::now() + std::chrono::minutes(1); }

Geometry Mixed() {
  return *Geometry::Create({.num_layers = 7,
                            .moe_layer_ids = {1, 2, 3, 5, 6},
                            .num_experts = {8, 256, 300, 64, 64},
                            .top_k = {2, 8, 4, 6, 3}});
}
// Of the pipeline's stages; the last one has none.
const std::vector<std::vector<int32_t>> kStages = {{0, 1}, {4}, {2, 3}, {}};

// Tensor ranks next to each other, then context ranks, then stages.
std::vector<RecordingRank> Ranks(const MicroBatchLayout& layout) {
  std::vector<RecordingRank> ranks;
  for (const std::vector<int32_t>& ordinals : kStages) {
    for (int32_t c = 0; c < layout.cp_size; ++c) {
      for (int32_t t = 0; t < layout.tp_size; ++t) {
        ranks.push_back({.ordinals = ordinals, .rows = {.cp_rank = c, .tp_rank = t}});
      }
    }
  }
  return ranks;
}

uint16_t RouteId(const std::vector<RandomRoutes>& routes, const LayerRouting& layer, int32_t ordinal,
                 const LocalRow& shown, int32_t k) {
  return routes[shown.sequence].layers[ordinal][shown.row * layer.top_k + k];
}

std::vector<uint8_t> Record(const Geometry& geometry, const MicroBatchLayout& layout, const RecordingRank& rank,
                            const std::vector<RandomRoutes>& routes) {
  const std::vector<LocalRow> shown = reference::LocalRows(layout, rank.rows.cp_rank, rank.rows.tp_rank);
  std::vector<uint8_t> indices;
  for (int32_t ordinal : rank.ordinals) {
    const LayerRouting& layer = geometry.layer(ordinal);
    std::vector<uint8_t> slab(shown.size() * layer.top_k * layer.id_bytes(), 0xEE);
    for (size_t i = 0; i < shown.size(); ++i) {
      if (shown[i].state == RowState::kPad) continue;
      for (int32_t k = 0; k < layer.top_k; ++k) {
        StoreId(slab.data(), layer.id_bytes(), i * layer.top_k + k, RouteId(routes, layer, ordinal, shown[i], k));
      }
    }
    indices.insert(indices.end(), slab.begin(), slab.end());
  }
  return indices;
}

void ExpectRoutes(const Geometry& geometry, const RandomRoutes& routes, const MergedSequence& merged) {
  std::vector<uint8_t> planes;
  for (int32_t ordinal = 0; ordinal < geometry.num_moe_layers(); ++ordinal) {
    const LayerRouting& layer = geometry.layer(ordinal);
    std::vector<uint8_t> plane(merged.rows * layer.top_k * layer.id_bytes());
    for (int64_t i = 0; i < merged.rows * layer.top_k; ++i) {
      StoreId(plane.data(), layer.id_bytes(), i, routes.layers[ordinal][i]);
    }
    planes.insert(planes.end(), plane.begin(), plane.end());
  }
  EXPECT_EQ(merged.planes, planes);
}

TEST(GatherRecords, GiveBackTheSamples) {
  RandomLayouts layouts(7);
  const Geometry geometry = Mixed();
  for (uint64_t trial = 0; trial < 30; ++trial) {
    const MicroBatchLayout layout = layouts.Next();
    std::vector<RandomRoutes> routes;
    for (const SequenceShape& shape : layout.sequences) {
      routes.push_back(MakeRandomRoutes(geometry, shape.tokens, trial * 100 + routes.size()));
    }
    const std::vector<RecordingRank> ranks = Ranks(layout);
    const auto collectives = MakeLocalCollectives(static_cast<int32_t>(ranks.size()));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const auto indices = Record(geometry, layout, ranks[rank], routes);
        ASSERT_OK_AND_ASSIGN(const auto gathered,
                             GatherRecords(*collectives[rank], geometry, layout, ranks, indices, InAMinute()));
        ASSERT_OK_AND_ASSIGN(const auto merged, MergeRecords(geometry, layout, RecordsOf(gathered)));
        ASSERT_EQ(merged.size(), routes.size());
        for (size_t i = 0; i < merged.size(); ++i) ExpectRoutes(geometry, routes[i], merged[i]);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(GatherRecords, RanksThatDoNotFit) {
  const MicroBatchLayout layout{
      .sequences = {{.tokens = 4, .recorded_rows = 3}}, .cu_seqlens_padded = {0, 4}, .total_rows = 4};
  const auto alone = MakeLocalCollectives(1);
  EXPECT_THAT(GatherRecords(*alone[0], Mixed(), layout, {}, {}, InAMinute()),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kLength));
  const std::vector<RecordingRank> outside = {{.ordinals = {0}, .rows = {.cp_rank = 1}}};
  EXPECT_EQ(GatherRecords(*alone[0], Mixed(), layout, outside, {}, InAMinute()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// All ranks learn of it, whoever it was.
TEST(GatherRecords, AnIndexBufferOfAnotherSize) {
  const MicroBatchLayout layout{
      .sequences = {{.tokens = 4, .recorded_rows = 3}}, .cu_seqlens_padded = {0, 4}, .total_rows = 4};
  const std::vector<RecordingRank> ranks = {{.ordinals = {0}}, {}};
  const std::vector<std::array<size_t, 2>> wrong = {{0, 0}, {7, 0}, {9, 0}, {8, 1}};
  for (const std::array<size_t, 2>& sizes : wrong) {
    const auto collectives = MakeLocalCollectives(2);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const std::vector<uint8_t> indices(sizes[rank]);
        EXPECT_THAT(GatherRecords(*collectives[rank], Mixed(), layout, ranks, indices, InAMinute()),
                    Fails(absl::StatusCode::kInvalidArgument, Reason::kLength));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace routing_replay::trainer
