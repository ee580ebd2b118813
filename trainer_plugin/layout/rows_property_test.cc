// Random layouts against the reference, and what all ranks see together.
#include <cstdlib>
#include <map>
#include <random>
#include <utility>

#include "routing_replay/trainer/rows.h"
#include "tests/reference/token_layout_reference.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

// 5,000, or what RR_LAYOUT_TRIALS says.
int Trials() {
  const char* const said = std::getenv("RR_LAYOUT_TRIALS");
  return said == nullptr ? 5000 : std::atoi(said);
}

class RandomLayouts {
 public:
  explicit RandomLayouts(uint32_t seed) : random_(seed) {}

  // Valid, every partition but kExplicit.
  MicroBatchLayout Next() {
    MicroBatchLayout layout;
    layout.cp_size = 1 << Pick(0, 2);
    layout.tp_size = static_cast<int32_t>(Pick(1, 3));
    layout.sequence_parallel = Pick(0, 1);
    Pick(0, 1) ? Packed(layout) : Rectangle(layout);
    return layout;
  }

  int64_t Pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

 private:
  int64_t Unit(const MicroBatchLayout& layout) const { return 2 * layout.cp_size * layout.tp_size; }

  SequenceShape Shape(int64_t padded_length) {
    SequenceShape shape{.tokens = Pick(0, 9) == 0 ? padded_length : Pick(0, padded_length)};
    shape.recorded_rows = Pick(0, 3) == 0 ? Pick(0, shape.tokens) : std::max<int64_t>(0, shape.tokens - 1);
    shape.first_row = Pick(0, 3) == 0 ? Pick(0, padded_length - shape.tokens) : 0;
    return shape;
  }

  void Packed(MicroBatchLayout& layout) {
    constexpr Partition kPartitions[] = {Partition::kZigzagPerDocument, Partition::kZigzagPerSequence,
                                         Partition::kContiguous};
    layout.partition = kPartitions[Pick(0, 2)];
    layout.cu_seqlens_padded = {0};
    for (int64_t d = Pick(0, 6); d > 0; --d) {
      // Only the sum must divide where the whole stream is cut.
      const int64_t unit = layout.partition == Partition::kZigzagPerDocument ? Unit(layout) : 1;
      const int64_t rows = Pick(0, 5) * unit;
      layout.sequences.push_back(Shape(rows));
      layout.cu_seqlens_padded.push_back(layout.cu_seqlens_padded.back() + rows);
    }
    const int64_t end = layout.cu_seqlens_padded.back();
    layout.total_rows = (end + Unit(layout) - 1) / Unit(layout) * Unit(layout);
    if (layout.total_rows > end || Pick(0, 1)) layout.cu_seqlens_padded.push_back(layout.total_rows);
    const int64_t local = layout.total_rows / layout.cp_size / (layout.sequence_parallel ? layout.tp_size : 1);
    const int64_t samples = Pick(1, 4);
    if (local > 0 && local % samples == 0 && Pick(0, 1)) layout.tokens_per_sample = local / samples;
  }

  void Rectangle(MicroBatchLayout& layout) {
    layout.format = TokenFormat::kBshd;
    layout.partition = Pick(0, 1) ? Partition::kZigzagPerSequence : Partition::kContiguousPerSequence;
    layout.row_order = Pick(0, 1) ? RowOrder::kSequenceMajor : RowOrder::kBatchMajor;
    layout.sp_slice = Pick(0, 1) ? SpSlice::kBeforeFlatten : SpSlice::kAfterFlatten;
    layout.batch_size = Pick(1, 5);
    layout.padded_length = Pick(0, 4) * Unit(layout);
    for (int64_t b = Pick(0, layout.batch_size); b > 0; --b) layout.sequences.push_back(Shape(layout.padded_length));
  }

  std::mt19937 random_;
};

TEST(RowMapProperty, EqualsTheReferenceOnEveryRank) {
  RandomLayouts layouts(31);
  for (int trial = 0; trial < Trials(); ++trial) {
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

// With sequence parallelism each row is on exactly one rank, without it once per tensor rank; no row is invented.
TEST(RowMapProperty, AllRanksTogetherCoverEachRow) {
  RandomLayouts layouts(32);
  for (int trial = 0; trial < Trials(); ++trial) {
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

// A partition of the stream given as positions is the same as the partition itself.
TEST(RowMapProperty, ExplicitPositionsReproducePartitions) {
  RandomLayouts layouts(33);
  for (int trial = 0; trial < Trials() / 10; ++trial) {
    MicroBatchLayout layout = layouts.Next();
    layout.tokens_per_sample.reset();
    // The stream as one sequence numbers its own positions.
    if (layout.format != TokenFormat::kThd || layout.partition == Partition::kZigzagPerDocument) continue;
    const MicroBatchLayout all_tokens{.sequences = {{layout.total_rows, layout.total_rows}},
                                      .cu_seqlens_padded = {0, layout.total_rows},
                                      .total_rows = layout.total_rows,
                                      .partition = layout.partition,
                                      .cp_size = layout.cp_size};
    MicroBatchLayout explicit_layout = layout;
    explicit_layout.partition = Partition::kExplicit;
    for (int32_t c = 0; c < layout.cp_size; ++c) {
      RowRank rank{.cp_rank = c, .tp_rank = static_cast<int32_t>(layouts.Pick(0, layout.tp_size - 1))};
      ASSERT_OK_AND_ASSIGN(const RowMap expected, BuildRowMap(layout, rank));
      for (const LocalRow& row : reference::LocalRows(all_tokens, c, 0)) rank.positions.push_back(row.row);
      ASSERT_OK_AND_ASSIGN(const RowMap map, BuildRowMap(explicit_layout, rank));
      EXPECT_EQ(ExpandRowMap(map), ExpandRowMap(expected)) << "trial " << trial;
    }
  }
}

}  // namespace
}  // namespace routing_replay::trainer
