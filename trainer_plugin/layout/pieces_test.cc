#include "routing_replay/trainer/plan.h"

#include <random>

#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;

MicroBatchLayout TwoSequences(int64_t first, int64_t second) {
  const int64_t padded_first = (first + 3) / 4 * 4, padded_second = (second + 3) / 4 * 4;
  return {.sequences = {{first, first - 1}, {second, second - 1}},
          .cu_seqlens_padded = {0, padded_first, padded_first + padded_second},
          .total_rows = padded_first + padded_second,
          .partition = Partition::kZigzagPerDocument,
          .cp_size = 2};
}

// Compares every local row with a simple search for the piece of its token.
TEST(Pieces, EveryRowIsThatOfItsPiece) {
  std::mt19937 random(5);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bound)); };
  for (int trial = 0; trial < 500; ++trial) {
    const MicroBatchLayout layout = TwoSequences(1 + below(20), 1 + below(20));
    std::vector<SequencePiece> pieces;
    for (int32_t sequence : {0, 1}) {
      for (int64_t offset = 0; offset < layout.sequences[sequence].tokens;) {
        const int64_t tokens = 1 + below(layout.sequences[sequence].tokens - offset);
        pieces.push_back({"s", sequence, offset, tokens, below(100), below(tokens + 1)});
        offset += tokens;
      }
    }
    for (int32_t rank : {0, 1}) {
      ASSERT_OK_AND_ASSIGN(const RowMap map, BuildRowMap(layout, {.cp_rank = rank}));
      ASSERT_OK_AND_ASSIGN(const RowMap shown, ShowPieces(map, layout, pieces));
      const auto before = ExpandRowMap(map), after = ExpandRowMap(shown);
      int64_t replayed = 0;
      for (size_t i = 0; i < before.size(); ++i) {
        ASSERT_EQ(before[i].state == RowState::kPad, after[i].state == RowState::kPad);
        if (before[i].state == RowState::kPad) continue;
        const SequencePiece& piece = pieces[after[i].sequence];
        const int64_t within = before[i].row - piece.offset;
        ASSERT_EQ(piece.sequence, before[i].sequence);
        ASSERT_TRUE(within >= 0 && within < piece.tokens);
        ASSERT_EQ(after[i].row, piece.start + within);
        ASSERT_EQ(after[i].state, within < piece.rows ? RowState::kReplayed : RowState::kUnrecorded);
        replayed += after[i].state == RowState::kReplayed;
      }
      ASSERT_EQ(shown.replayed_rows, replayed);
      ASSERT_EQ(shown.pad_rows(), map.pad_rows());
    }
  }
}

TEST(Pieces, TheyMustCoverTheirSequences) {
  const MicroBatchLayout layout = TwoSequences(8, 4);
  ASSERT_OK_AND_ASSIGN(const RowMap map, BuildRowMap(layout, {}));
  const SequencePiece whole{"a", 0, 0, 8, 0, 7}, second{"b", 1, 0, 4, 3, 3};
  EXPECT_OK(ShowPieces(map, layout, {whole, second}));
  const auto rejected = Fails(absl::StatusCode::kInvalidArgument, Reason::kField);
  for (const std::vector<SequencePiece>& wrong : std::vector<std::vector<SequencePiece>>{
           {whole},
           {second, whole},
           {whole, second, second},
           {{"a", 0, 0, 5, 0, 4}, {"a", 0, 4, 4, 0, 4}, second},
           {{"a", 0, 0, 5, 0, 4}, {"a", 0, 5, 2, 0, 1}, second},
           {whole, {"b", 1, 0, 4, 3, 5}},
           {whole, {"b", 1, 0, 4, -1, 3}},
           {whole, {"b", 2, 0, 4, 0, 3}},
           {whole, {"b", 1, 0, 0, 0, 0}},
       }) {
    EXPECT_THAT(ShowPieces(map, layout, wrong), rejected);
  }
}

}  // namespace
}  // namespace routing_replay::trainer
