#include "routing_replay/trainer/rows.h"

#include "tests/reference/token_layout_reference.h"
#include "tests/support/layout_trials.h"
#include "tests/support/random_layouts.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using routing_replay::testing::LayoutTrials;
using routing_replay::testing::RandomLayouts;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<RowMap> MapsOf(const MicroBatchLayout& layout) {
  std::vector<RowMap> maps;
  for (int32_t c = 0; c < layout.cp_size; ++c) {
    for (int32_t t = 0; t < layout.tp_size; ++t) maps.push_back(*BuildRowMap(layout, {.cp_rank = c, .tp_rank = t}));
  }
  return maps;
}

// One document of 13 tokens, all of which have a route, over two context-parallel ranks. The first rank has rows 0 … 3
// and 12, the second one rows 4 … 11.
MicroBatchLayout ThirteenTokens() {
  return {
      .sequences = {{.tokens = 13, .recorded_rows = 13}}, .cu_seqlens_padded = {0, 16}, .total_rows = 16, .cp_size = 2};
}

TEST(MergeRows, ZigzagOfOneDocument) {
  ASSERT_OK_AND_ASSIGN(const auto merges, MergeRows(ThirteenTokens(), MapsOf(ThirteenTokens())));
  ASSERT_EQ(merges.size(), 1u);
  EXPECT_THAT(merges[0].runs, ElementsAre(RecordRun{0, {.local_row = 0, .count = 4, .row = 0}},
                                          RecordRun{1, {.local_row = 0, .count = 4, .row = 4}},
                                          RecordRun{1, {.local_row = 4, .count = 4, .row = 8}},
                                          RecordRun{0, {.local_row = 4, .count = 1, .row = 12}}));
  EXPECT_TRUE(merges[0].copies.empty());
}

TEST(MergeRows, TensorRanksWithoutSequenceParallelismAreCopies) {
  MicroBatchLayout layout = ThirteenTokens();
  layout.cp_size = 1;
  layout.tp_size = 2;
  ASSERT_OK_AND_ASSIGN(const auto merges, MergeRows(layout, MapsOf(layout)));
  EXPECT_THAT(merges[0].runs, ElementsAre(RecordRun{0, {.count = 13}}));
  EXPECT_THAT(merges[0].copies, ElementsAre(RecordRun{1, {.count = 13}}));
}

TEST(MergeRows, NamesWhatNoRankHas) {
  std::vector<RowMap> maps = MapsOf(ThirteenTokens());
  maps.erase(maps.begin());
  const auto merges = MergeRows(ThirteenTokens(), maps, std::vector<std::string>{"math-7/0"});
  EXPECT_THAT(merges, Fails(absl::StatusCode::kFailedPrecondition, Reason::kNotCommitted));
  EXPECT_THAT(std::string(merges.status().message()), HasSubstr("5 rows of sequence 0 (math-7/0) from row 0 on"));
  const ErrorDetail detail = *GetErrorDetail(merges.status());
  EXPECT_EQ(detail.sample, "math-7/0");
  EXPECT_EQ(detail.row, 0);
}

// Merging undoes the distribution of rows over ranks. Each merged row comes from a local row that, by the reference,
// shows exactly this row; and every replayed local row of every rank is either merged or listed as a copy.
TEST(MergeRowsProperty, ReverseMapOfTheRowMap) {
  RandomLayouts layouts(62);
  for (int trial = 0; trial < LayoutTrials(); ++trial) {
    const MicroBatchLayout layout = layouts.Next();
    ASSERT_OK_AND_ASSIGN(const auto merges, MergeRows(layout, MapsOf(layout)));
    std::vector<std::vector<LocalRow>> shown;
    int64_t replayed = 0, used = 0;
    for (int32_t c = 0; c < layout.cp_size; ++c) {
      for (int32_t t = 0; t < layout.tp_size; ++t) {
        shown.push_back(reference::LocalRows(layout, c, t));
        for (const LocalRow& row : shown.back()) replayed += row.state == RowState::kReplayed;
      }
    }
    for (size_t s = 0; s < merges.size(); ++s) {
      int64_t next = 0;
      const auto check = [&](const RecordRun& part) {
        for (int64_t i = 0; i < part.run.count; ++i, ++used) {
          const LocalRow& row = shown.at(part.record).at(part.run.local_row + i * part.run.stride);
          const LocalRow expected{static_cast<int32_t>(s), static_cast<int32_t>(part.run.row + i), RowState::kReplayed};
          ASSERT_EQ(row, expected) << "trial " << trial;
        }
      };
      for (const RecordRun& part : merges[s].runs) {
        ASSERT_EQ(part.run.row, next) << "trial " << trial;
        next += part.run.count;
        ASSERT_NO_FATAL_FAILURE(check(part));
      }
      ASSERT_EQ(next, layout.sequences[s].recorded_rows);
      for (const RecordRun& part : merges[s].copies) ASSERT_NO_FATAL_FAILURE(check(part));
      ASSERT_EQ(merges[s].copies.empty(), layout.sequence_parallel || layout.tp_size == 1 || next == 0);
    }
    ASSERT_EQ(used, replayed) << "trial " << trial;
  }
}

}  // namespace
}  // namespace routing_replay::trainer
