#include "routing_replay/trainer/diagnose.h"

#include <algorithm>
#include <functional>
#include <random>

#include "absl/strings/str_join.h"
#include "tests/support/status_matchers.h"
#include "trainer_plugin/layout/mistakes.h"

namespace routing_replay::trainer {
namespace {

using ::testing::Contains;

Geometry Moonlight() {
  Geometry::Options options{.num_layers = 27, .num_experts = {64}, .top_k = {6}};
  for (int32_t i = 1; i < 27; ++i) options.moe_layer_ids.push_back(i);
  return *Geometry::Create(options);
}

// Two documents over two context-parallel and two tensor-parallel ranks.
MicroBatchLayout Packed() {
  return {.sequences = {{.tokens = 13, .recorded_rows = 12}, {.tokens = 19, .recorded_rows = 18}},
          .cu_seqlens_padded = {0, 16, 40},
          .total_rows = 40,
          .cp_size = 2,
          .tp_size = 2,
          .sequence_parallel = true};
}

MicroBatchLayout Rectangle() {
  return {.format = TokenFormat::kBshd,
          .sequences = {{.tokens = 13, .recorded_rows = 12}, {.tokens = 16, .recorded_rows = 15}},
          .batch_size = 2,
          .padded_length = 16,
          .partition = Partition::kZigzagPerSequence,
          .cp_size = 2,
          .tp_size = 2,
          .sequence_parallel = true};
}

std::vector<LocalRow> Rows(MicroBatchLayout layout, RowRank rank, size_t count) {
  std::vector<LocalRow> rows = ExpandRowMap(*BuildRowMap(layout, rank));
  rows.resize(count);
  return rows;
}

bool SameRow(const LocalRow& a, const LocalRow& b) {
  const bool replayed = a.state == RowState::kReplayed;
  return replayed == (b.state == RowState::kReplayed) && (!replayed || (a.sequence == b.sequence && a.row == b.row));
}

// Returns the mistakes that lead to these rows, or "none" for the correct rows; empty if nothing known leads to them.
std::vector<std::string> MistakesOf(const MicroBatchLayout& layout, const RowRank& rank,
                                    const std::vector<LocalRow>& rows) {
  const auto ways = RowWays(layout, rank);
  EXPECT_OK(ways);
  for (const RowWay& way : *ways) {
    if (std::equal(way.seen.begin(), way.seen.end(), rows.begin(), rows.end(), SameRow)) return way.mistakes;
  }
  return {};
}

void ExpectMistake(const MicroBatchLayout& layout, const RowRank& rank, const std::vector<LocalRow>& observed,
                   const std::string& mistake) {
  EXPECT_THAT(MistakesOf(layout, rank, observed), Contains(mistake));
}

TEST(RowWaysTest, TheRightRowsNeedNoMistake) {
  for (const MicroBatchLayout& layout : {Packed(), Rectangle()}) {
    ExpectMistake(layout, {.cp_rank = 1, .tp_rank = 1},
                  Rows(layout, {.cp_rank = 1, .tp_rank = 1}, 10 - 2 * (layout.batch_size > 0)), "none");
  }
}

TEST(RowWaysTest, KnownMistakesOfPackedRows) {
  const RowRank rank{.cp_rank = 1, .tp_rank = 0};
  MicroBatchLayout wrong = Packed();
  wrong.partition = Partition::kContiguous;
  ExpectMistake(Packed(), rank, Rows(wrong, rank, 10), "partition_contiguous");
  wrong = Packed();
  wrong.partition = Partition::kZigzagPerSequence;
  ExpectMistake(Packed(), rank, Rows(wrong, rank, 10), "partition_zigzag_per_sequence");
  wrong = Packed();
  wrong.sequence_parallel = false;
  ExpectMistake(Packed(), {.cp_rank = 1, .tp_rank = 1}, Rows(wrong, {.cp_rank = 1, .tp_rank = 1}, 10),
                "no_sequence_parallel_slice");
  ExpectMistake(Packed(), rank, Rows(Packed(), {.cp_rank = 0, .tp_rank = 0}, 10), "rows_of_cp_rank_0");
  std::vector<LocalRow> late = Rows(Packed(), rank, 10);
  for (LocalRow& row : late) {
    if (row.state != RowState::kPad) row.state = --row.row >= 0 ? RowState::kReplayed : RowState::kUnrecorded;
  }
  ExpectMistake(Packed(), rank, late, "one_row_late");
}

TEST(RowWaysTest, BatchMajorRows) {
  const RowRank rank{.cp_rank = 0, .tp_rank = 1};
  MicroBatchLayout wrong = Rectangle();
  wrong.row_order = RowOrder::kBatchMajor;
  ExpectMistake(Rectangle(), rank, Rows(wrong, rank, 8), "batch_major");
  wrong.sp_slice = SpSlice::kBeforeFlatten;
  ExpectMistake(Rectangle(), rank, Rows(wrong, rank, 8), "batch_major_sliced_per_sequence");
}

// Rows in an order that no known mistake produces are attributed to none.
TEST(RowWaysTest, UnknownRowsAreOfNoMistake) {
  std::vector<LocalRow> observed = Rows(Packed(), {}, 10);
  std::reverse(observed.begin(), observed.end());
  EXPECT_TRUE(MistakesOf(Packed(), {}, observed).empty());
}

// Does for layers what MistakesOf does for rows.
std::vector<std::string> MistakesOfLayers(const Geometry& geometry, const LayerSplit& split, const PlanRank& rank,
                                          const std::vector<int32_t>& layers) {
  const auto ways = LayerWays(geometry, split, rank);
  EXPECT_OK(ways);
  for (const LayerWay& way : *ways) {
    if (way.seen == layers) return way.mistakes;
  }
  return {};
}

TEST(LayerWaysTest, KnownMistakes) {
  const Geometry geometry = Moonlight();
  const LayerSplit split{.num_layers = 27, .pipeline_size = 2, .first_stage_layers = 13};
  const auto mistake = [&](int32_t pp_rank, const std::function<int32_t(int32_t)>& layer) {
    std::vector<int32_t> observed;
    for (int32_t i = 0; i < (pp_rank == 0 ? 12 : 14); ++i) observed.push_back(layer(i));
    return absl::StrJoin(MistakesOfLayers(geometry, split, {.pp_rank = pp_rank}, observed), " ");
  };
  EXPECT_EQ(mistake(1, [](int32_t i) { return 13 + i; }), "none");
  EXPECT_EQ(mistake(0, [](int32_t i) { return i; }), "moe_ordinal_as_layer construction_order one_layer_before");
  EXPECT_EQ(mistake(1, [](int32_t i) { return 14 + i; }), "layer_number_as_index");
  EXPECT_EQ(mistake(1, [](int32_t i) { return 1 + i; }), "no_pipeline_offset");
  EXPECT_EQ(mistake(1, [](int32_t i) { return i; }), "construction_order");
  EXPECT_EQ(mistake(1, [](int32_t i) { return 20 - i; }), "");
}

// Layers that route live in this trainer are not among the layers that were seen.
TEST(LayerWaysTest, NativeLayersAreLeftOut) {
  const Geometry geometry = Geometry::Uniform(8, 64, 4);
  const PlanRank rank{.pp_rank = 0, .native_layers = {0, 1, 2}};
  EXPECT_THAT(MistakesOfLayers(geometry, {.num_layers = 8, .pipeline_size = 2}, rank, {3}), Contains("none"));
}

TEST(LayerWaysTest, VirtualStagesIgnored) {
  const Geometry geometry = Geometry::Uniform(48, 128, 8);
  const LayerSplit split{.num_layers = 48, .pipeline_size = 4, .virtual_stages = 2};
  std::vector<int32_t> observed;
  for (int32_t layer = 0; layer < 12; ++layer) observed.push_back(layer);
  EXPECT_THAT(MistakesOfLayers(geometry, split, {}, observed), Contains("chunks_side_by_side"));
}

// Makes every pair of a mistake in rows and a mistake in layers, which must be found from the ids alone.
TEST(JudgeAlignmentTest, PairsOfMistakesAreFoundInTheIds) {
  const Geometry geometry = Moonlight();
  const LayerSplit split{.num_layers = 27, .pipeline_size = 2, .first_stage_layers = 13};
  std::mt19937 random(3);
  std::vector<RouteIds> recorded;
  for (const SequenceShape& sequence : Packed().sequences) {
    RouteIds ids{sequence.recorded_rows, 26, 6, {}};
    for (int64_t i = 0; i < ids.rows * 26 * 6; ++i) ids.ids.push_back(static_cast<int32_t>(random() % 64));
    recorded.push_back(std::move(ids));
  }
  const MicroBatchLayout layout = Packed();
  const PlanRank rank{.pp_rank = 1, .rows = {.cp_rank = 1, .tp_rank = 1}};
  ASSERT_OK_AND_ASSIGN(const std::vector<RowWay> row_ways, RowWays(Packed(), rank.rows));
  ASSERT_OK_AND_ASSIGN(const std::vector<LayerWay> layer_ways, LayerWays(geometry, split, rank));
  int pairs = 0;
  for (const RowWay& rows : row_ways) {
    for (const LayerWay& layers : layer_ways) {
      const bool exist = std::all_of(layers.seen.begin(), layers.seen.end(),
                                     [&](int32_t layer) { return geometry.FindOrdinal(layer); });
      if (!exist) continue;
      RouteIds observed{static_cast<int64_t>(rows.seen.size()), 14, 6, {}};
      for (const LocalRow& row : rows.seen) {
        for (const int32_t layer : layers.seen) {
          for (int32_t k = 5; k >= 0; --k) {
            const bool replayed = row.state == RowState::kReplayed;
            observed.ids.push_back(
                replayed ? recorded[row.sequence].ids[(row.row * 26 + *geometry.FindOrdinal(layer)) * 6 + k] : k);
          }
        }
      }
      ASSERT_OK_AND_ASSIGN(const Alignment found, JudgeAlignment({.geometry = geometry,
                                                                  .split = split,
                                                                  .layout = layout,
                                                                  .rank = rank,
                                                                  .recorded = recorded,
                                                                  .live = observed,
                                                                  .replayed = true}));
      EXPECT_TRUE(found.rows.exact());
      EXPECT_EQ(found.layers.mistakes, layers.mistakes);
      pairs += found.rows.mistakes == rows.mistakes;
    }
  }
  EXPECT_GT(pairs, 20);
}

}  // namespace
}  // namespace routing_replay::trainer
