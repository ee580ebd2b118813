#include "trainer_plugin/layout/explain.h"

#include <random>

#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using Ranges = std::vector<RowRange>;
using At = std::vector<LocalRows>;

// One document of 13 tokens in 16 rows over two context and two tensor ranks: all filler lands on one rank.
TEST(ExplainMicroBatch, WhoHoldsWhat) {
  const MicroBatchLayout layout{.sequences = {{.tokens = 13, .recorded_rows = 12}},
                                .cu_seqlens_padded = {0, 16},
                                .total_rows = 16,
                                .cp_size = 2,
                                .tp_size = 2,
                                .sequence_parallel = true};
  ASSERT_OK_AND_ASSIGN(const std::vector<HeldRows> held, ExplainMicroBatch(layout, {}));
  ASSERT_EQ(held.size(), 5u);
  EXPECT_EQ(held[0].replayed, (Ranges{{0, 4}}));
  EXPECT_EQ(held[0].at, (At{{0, 4}}));
  EXPECT_EQ(held[1].tp_rank, 1);
  EXPECT_EQ(held[1].replayed, Ranges());
  EXPECT_EQ(held[1].unrecorded, (Ranges{{12, 13}}));
  EXPECT_EQ(held[3].replayed, (Ranges{{8, 12}}));
  EXPECT_EQ(held[4].sequence, std::nullopt);
  EXPECT_EQ(held[4].at, (At{{1, 4}}));
}

TEST(ExplainMicroBatch, SequenceMajorRowsHaveAStride) {
  const MicroBatchLayout layout{.format = TokenFormat::kBshd,
                                .sequences = {{.tokens = 8, .recorded_rows = 7}, {.tokens = 8, .recorded_rows = 7}},
                                .batch_size = 2,
                                .padded_length = 8,
                                .partition = Partition::kZigzagPerSequence,
                                .cp_size = 2};
  ASSERT_OK_AND_ASSIGN(const std::vector<HeldRows> held, ExplainMicroBatch(layout, {}));
  ASSERT_EQ(held.size(), 4u);
  EXPECT_EQ(held[0].tp_rank, std::nullopt);
  EXPECT_EQ(held[0].replayed, (Ranges{{0, 2}, {6, 7}}));
  EXPECT_EQ(held[0].unrecorded, (Ranges{{7, 8}}));
  EXPECT_EQ(held[0].at, (At{{0, 7, 2}}));
  EXPECT_EQ(held[2].sequence, 1);
  EXPECT_EQ(held[2].at, (At{{1, 8, 2}}));
}

TEST(ExplainMicroBatch, PositionsAreThoseOfTheRankThatSaysThem) {
  MicroBatchLayout layout{
      .sequences = {{.tokens = 8, .recorded_rows = 7}}, .cu_seqlens_padded = {0, 8}, .total_rows = 8};
  layout.partition = Partition::kExplicit;
  layout.cp_size = 2;
  ASSERT_OK_AND_ASSIGN(const std::vector<HeldRows> held,
                       ExplainMicroBatch(layout, {.cp_rank = 1, .positions = {6, 2, 3, 2}}));
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].cp_rank, 1);
  EXPECT_EQ(held[0].replayed, (Ranges{{2, 4}, {6, 7}}));
}

TEST(ExplainLayerTable, EachChunk) {
  Geometry::Options options{.num_layers = 8, .moe_layer_ids = {0, 2, 4, 6}, .num_experts = {8}, .top_k = {2}};
  const Geometry geometry = *Geometry::Create(options);
  const LayerTable table = *LayerTable::Create({.num_layers = 8, .pipeline_size = 2, .virtual_stages = 2});
  ASSERT_OK_AND_ASSIGN(const std::vector<HeldLayers> held, ExplainLayerTable(geometry, table));
  ASSERT_EQ(held.size(), 4u);
  EXPECT_EQ(held[1].pp_rank, 0);
  EXPECT_EQ(held[1].chunk, 1);
  EXPECT_EQ(held[1].decoder, (LayerRange{4, 6}));
  EXPECT_EQ(held[1].moe, (Ranges{{4, 5}}));
  EXPECT_EQ(held[1].num_moe, 1);
}

}  // namespace
}  // namespace routing_replay::trainer
