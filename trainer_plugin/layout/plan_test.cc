#include "routing_replay/trainer/plan.h"

#include <random>

#include "tests/reference/token_layout_reference.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using ::testing::ElementsAre;

Geometry Moonlight() {
  Geometry::Options options{.num_layers = 27, .num_experts = {64}, .top_k = {6}};
  for (int32_t i = 1; i < 27; ++i) options.moe_layer_ids.push_back(i);
  return *Geometry::Create(options);
}

MicroBatchLayout ThirteenTokens() {
  return {.sequences = {{.tokens = 13, .recorded_rows = 12}},
          .cu_seqlens_padded = {0, 16},
          .total_rows = 16,
          .cp_size = 2,
          .tp_size = 2,
          .sequence_parallel = true};
}

TEST(MakeReplayPlan, MoonlightSecondStage) {
  const LayerTable table = *LayerTable::Create({.num_layers = 27, .pipeline_size = 2, .first_stage_layers = 13});
  PlanRank rank{.pp_rank = 1, .rows = {.cp_rank = 0, .tp_rank = 0}};
  ASSERT_OK_AND_ASSIGN(ReplayPlan plan, MakeReplayPlan(Moonlight(), table, ThirteenTokens(), rank));
  ASSERT_EQ(plan.layers.size(), 14u);
  EXPECT_EQ(plan.layers.front().layer_id, 13);
  EXPECT_EQ(plan.layers.front().ordinal, 12);
  EXPECT_EQ(plan.layers.back().layer_id, 26);
  EXPECT_EQ(plan.layers.back().ordinal, 25);
  EXPECT_THAT(plan.slices, ElementsAre(PlanSlice{.sequence = 0, .rows = {{0, 4}}}));
  EXPECT_EQ(plan.rows_to_read, 4);
  EXPECT_EQ(plan.bytes_to_read, 14 * 4 * 6);
  // The rank that holds all the filler of this micro-batch reads nothing.
  rank.rows.tp_rank = 1;
  ASSERT_OK_AND_ASSIGN(plan, MakeReplayPlan(Moonlight(), table, ThirteenTokens(), rank));
  EXPECT_TRUE(plan.slices.empty());
  EXPECT_EQ(plan.row_map.unrecorded_rows, 1);
  EXPECT_EQ(plan.row_map.pad_rows(), 3);
}

TEST(MakeReplayPlan, AStageWithoutMoeLayersReadsNothing) {
  const LayerTable table = *LayerTable::Create({.num_layers = 27, .pipeline_size = 2, .first_stage_layers = 1});
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan, MakeReplayPlan(Moonlight(), table, ThirteenTokens(), {.pp_rank = 0}));
  EXPECT_TRUE(plan.layers.empty());
  EXPECT_TRUE(plan.slices.empty());
  EXPECT_EQ(plan.bytes_to_read, 0);
  EXPECT_EQ(plan.row_map.rows, 4);
}

TEST(MakeReplayPlan, VirtualStagesTogetherOrOneByOne) {
  const Geometry geometry = Geometry::Uniform(8, 300, 2);
  const LayerTable table = *LayerTable::Create({.num_layers = 8, .pipeline_size = 2, .virtual_stages = 2});
  ASSERT_OK_AND_ASSIGN(const ReplayPlan all, MakeReplayPlan(geometry, table, ThirteenTokens(), {.pp_rank = 1}));
  EXPECT_THAT(all.layers,
              ElementsAre(OwnedLayer{2, 2, 0}, OwnedLayer{3, 3, 0}, OwnedLayer{6, 6, 1}, OwnedLayer{7, 7, 1}));
  EXPECT_EQ(all.bytes_to_read, 4 * 4 * 2 * 2);
  ASSERT_OK_AND_ASSIGN(const ReplayPlan one,
                       MakeReplayPlan(geometry, table, ThirteenTokens(), {.pp_rank = 1, .chunk = 1}));
  EXPECT_THAT(one.layers, ElementsAre(OwnedLayer{6, 6, 1}, OwnedLayer{7, 7, 1}));
}

// The slices name exactly the rows that the reference replays on this rank.
TEST(MakeReplayPlan, SlicesAreTheRowsOfTheRank) {
  const Geometry geometry = Geometry::Uniform(2, 8, 2);
  const LayerTable table = *LayerTable::Create({.num_layers = 2});
  std::mt19937 random(5);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int trial = 0; trial < 300; ++trial) {
    MicroBatchLayout layout{.cu_seqlens_padded = {0}, .cp_size = 2, .tp_size = 2, .sequence_parallel = true};
    for (int i = 0; i < 4; ++i) {
      const int64_t rows = 8 * pick(1, 4);
      const int64_t tokens = pick(1, rows);
      layout.sequences.push_back({.tokens = tokens, .recorded_rows = tokens - 1});
      layout.cu_seqlens_padded.push_back(layout.cu_seqlens_padded.back() + rows);
    }
    layout.total_rows = layout.cu_seqlens_padded.back();
    const PlanRank rank{
        .rows = {.cp_rank = static_cast<int32_t>(pick(0, 1)), .tp_rank = static_cast<int32_t>(pick(0, 1))}};
    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan, MakeReplayPlan(geometry, table, layout, rank));
    std::vector<std::vector<bool>> needed(4, std::vector<bool>(64));
    int64_t count = 0;
    for (const LocalRow& row : reference::LocalRows(layout, rank.rows.cp_rank, rank.rows.tp_rank)) {
      if (row.state != RowState::kReplayed) continue;
      needed[row.sequence][row.row] = true;
      ++count;
    }
    EXPECT_EQ(plan.rows_to_read, count);
    int32_t previous = -1;
    for (const PlanSlice& slice : plan.slices) {
      EXPECT_GT(slice.sequence, previous);
      previous = slice.sequence;
      EXPECT_OK(CheckNormal(slice.rows, {0, layout.sequences[slice.sequence].recorded_rows}));
      for (const RowRange& range : slice.rows) {
        for (int64_t row = range.begin; row < range.end; ++row) EXPECT_TRUE(needed[slice.sequence][row]);
      }
    }
  }
}

TEST(MakeReplayPlan, PassesRejectionsOn) {
  const LayerTable table = *LayerTable::Create({.num_layers = 27, .pipeline_size = 2, .first_stage_layers = 13});
  EXPECT_THAT(MakeReplayPlan(Moonlight(), table, ThirteenTokens(), {.pp_rank = 2}),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  MicroBatchLayout layout = ThirteenTokens();
  layout.total_rows = 20;
  EXPECT_THAT(MakeReplayPlan(Moonlight(), table, layout, {}),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
}

}  // namespace
}  // namespace routing_replay::trainer
