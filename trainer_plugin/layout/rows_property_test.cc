// Compares random layouts with the reference, and checks the rows of all ranks together.
#include <map>
#include <utility>

#include "routing_replay/trainer/rows.h"
#include "tests/reference/token_layout_reference.h"
#include "tests/support/layout_trials.h"
#include "tests/support/random_layouts.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::LayoutTrials;
using routing_replay::testing::RandomLayouts;

TEST(RowMapProperty, EqualsTheReferenceOnEveryRank) {
  RandomLayouts layouts(31);
  for (int trial = 0; trial < LayoutTrials(); ++trial) {
    MicroBatchLayout layout = layouts.Next();
    for (int32_t c = 0; c < layout.cp_size; ++c) {
      for (int32_t t = 0; t < layout.tp_size; ++t) {
        ASSERT_OK_AND_ASSIGN(const RowMap map, BuildRowMap(layout, {.cp_rank = c, .tp_rank = t}));
        ASSERT_EQ(ExpandRowMap(map), reference::LocalRows(layout, c, t)) << "trial " << trial;
      }
    }
    layout.target_rows = layout.total_rows + layout.batch_size * layout.padded_length + layouts.Pick(0, 3);
    ASSERT_OK_AND_ASSIGN(const RowMap map, BuildRowMap(layout, {}));
    ASSERT_EQ(ExpandRowMap(map), reference::LocalRows(layout, 0, 0)) << "trial " << trial;
  }
}

// With sequence parallelism each row is on exactly one rank, without it on every tensor rank; there are no other rows.
TEST(RowMapProperty, AllRanksTogetherCoverEachRow) {
  RandomLayouts layouts(32);
  for (int trial = 0; trial < LayoutTrials(); ++trial) {
    const MicroBatchLayout layout = layouts.Next();
    std::map<std::pair<int32_t, int64_t>, int> seen;
    for (int32_t c = 0; c < layout.cp_size; ++c) {
      for (int32_t t = 0; t < layout.tp_size; ++t) {
        ASSERT_OK_AND_ASSIGN(const RowMap map, BuildRowMap(layout, {.cp_rank = c, .tp_rank = t}));
        for (const LocalRow& row : ExpandRowMap(map)) {
          if (row.state == RowState::kPad) continue;
          ++seen[{row.sequence, row.row}];
          const SequenceShape& shape = layout.sequences[row.sequence];
          EXPECT_EQ(row.state == RowState::kReplayed, row.row < shape.recorded_rows);
        }
      }
    }
    const int times = layout.sequence_parallel ? 1 : layout.tp_size;
    size_t tokens = 0;
    for (size_t i = 0; i < layout.sequences.size(); ++i) {
      for (int64_t row = 0; row < layout.sequences[i].tokens; ++row, ++tokens) {
        ASSERT_EQ((seen[{static_cast<int32_t>(i), row}]), times) << "trial " << trial;
      }
    }
    ASSERT_EQ(seen.size(), tokens);
  }
}

}  // namespace
}  // namespace routing_replay::trainer
