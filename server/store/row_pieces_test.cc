#include "server/store/row_pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/store/conformance/conformance.h"

namespace routing_replay::server {
namespace {

using testing::TestGeometry;

class RowPiecesTest : public ::testing::Test {
 protected:
  RowPiece MakePiece(RowRange block_rows, RowRange rows) {
    Block block{.rows = block_rows};
    const int64_t cost = home_->Cost(TestGeometry(), block_rows.size(), Codec::kRaw);
    std::shared_ptr<StoredBlock> stored = home_->Keep(std::move(block), cost);
    ByteReservation pool = *budget_.Reserve(cost);
    stored->Charge(pool);
    return {std::move(stored), rows};
  }
  // [0, 32) [32, 40) gap [50, 64) [64, 90)
  RowPieces MemorySample() {
    RowPieces pieces;
    pieces.Append(MakePiece({0, 32}, {0, 32}));
    pieces.Append(MakePiece({30, 40}, {32, 40}));
    pieces.Append(MakePiece({50, 64}, {50, 64}));
    pieces.Append(MakePiece({64, 96}, {64, 90}));
    return pieces;
  }
  static std::vector<RowRange> Rows(absl::Span<const RowPiece> pieces) {
    std::vector<RowRange> rows;
    for (const RowPiece& piece : pieces) rows.push_back(piece.rows);
    return rows;
  }

  ByteBudget budget_{1 << 20};
  std::shared_ptr<RunUsage> usage_ = std::make_shared<RunUsage>(budget_);
  const std::shared_ptr<MemoryHome> home_ = std::make_shared<MemoryHome>(usage_);
};

TEST_F(RowPiecesTest, FindsEveryRangeAsAScanDoes) {
  const RowPieces pieces = MemorySample();
  for (int64_t begin = 0; begin < 100; ++begin) {
    for (int64_t end = begin; end < 100; ++end) {
      std::vector<RowRange> expected;
      for (const RowPiece& piece : pieces.all()) {
        const RowRange common = Intersect(piece.rows, {begin, end});
        if (!common.empty()) expected.push_back(common);
      }
      ASSERT_EQ(Rows(pieces.Find({begin, end})), expected) << begin << " " << end;
    }
  }
}

TEST_F(RowPiecesTest, TruncateCutsAtAnyRow) {
  for (int64_t rows = 0; rows <= 100; ++rows) {
    RowPieces pieces = MemorySample();
    const std::vector<RowRange> expected = Rows(pieces.Find({0, rows}));
    const int64_t before = pieces.charged_bytes();
    const std::vector<RowPiece> removed = pieces.Truncate(rows);
    EXPECT_EQ(Rows(pieces.all()), expected) << rows;
    int64_t charged = 0;
    for (const RowPiece& piece : pieces.all()) charged += piece.stored->cost();
    EXPECT_EQ(pieces.charged_bytes(), charged);
    EXPECT_LE(charged, before);
  }
  EXPECT_EQ(budget_.used(), 0);
}

TEST_F(RowPiecesTest, APrefixSharesBlocksAndCostsNothing) {
  RowPieces pieces = MemorySample();
  const int64_t used = budget_.used();
  EXPECT_EQ(used, pieces.charged_bytes());
  EXPECT_EQ(pieces.exclusive_bytes(), used);
  RowPieces prefix = pieces.Prefix(35);
  EXPECT_EQ(Rows(prefix.all()), (std::vector<RowRange>{{0, 32}, {32, 35}}));
  EXPECT_EQ(prefix.charged_bytes(), 0);
  EXPECT_EQ(budget_.used(), used);
  EXPECT_LT(pieces.exclusive_bytes(), used);
  pieces.TakeFrom(0);
  EXPECT_EQ(pieces.charged_bytes(), 0);
  EXPECT_EQ(budget_.used(), prefix.exclusive_bytes());
  EXPECT_EQ(usage_->stored_bytes, budget_.used());
}

TEST_F(RowPiecesTest, ExclusiveChargesCanBeTakenAway) {
  RowPieces pieces = MemorySample();
  const RowPieces prefix = pieces.Prefix(10);
  const int64_t exclusive = pieces.exclusive_bytes(), used = budget_.used();
  ByteReservation pool;
  pieces.TakeExclusiveCharges(pool);
  EXPECT_EQ(pool.bytes(), exclusive);
  EXPECT_EQ(usage_->stored_bytes, used - exclusive);
  pieces.TakeFrom(0);
  EXPECT_EQ(budget_.used(), used);
}

}  // namespace
}  // namespace routing_replay::server
