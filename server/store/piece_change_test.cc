#include "server/store/row_pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "proto/wire/block/block.h"
#include "server/store/conformance/conformance.h"

namespace routing_replay::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::MakeBlock;
using testing::RowIds;
using ::testing::SizeIs;
using testing::TestGeometry;
using testing::Trajectory;

Block BlockOf(RowRange range, Codec codec = Codec::kRaw) {
  std::vector<RowIds> rows;
  for (int64_t row = range.begin; row < range.end; ++row) rows.push_back(Trajectory{}.RowAt(TestGeometry(), row));
  return MakeBlock(TestGeometry(), range.begin, rows, codec);
}

class PieceChangeTest : public ::testing::Test {
 protected:
  absl::Status Apply(std::vector<Block> blocks, RowRange committed, bool sealed = false) {
    PieceChange change(run_, home_, pieces_, std::move(blocks), committed, sealed);
    ByteReservation pool = *budget_.Reserve(std::max<int64_t>(0, change.cost() - change.reclaimable_bytes()));
    if (absl::Status status = change.Merge(); !status.ok()) return status;
    replaced_ = change.Commit(pieces_, pool);
    EXPECT_EQ(pool.bytes(), std::max<int64_t>(0, change.reclaimable_bytes() - change.cost()));
    pool.Release();
    replaced_.clear();
    EXPECT_EQ(budget_.used(), pieces_.charged_bytes());
    EXPECT_EQ(usage_->stored_bytes, budget_.used());
    return absl::OkStatus();
  }
  absl::Status Add(Block block, bool sealed = false) {
    const RowRange rows = block.rows;
    std::vector<Block> blocks;
    blocks.push_back(std::move(block));
    return Apply(std::move(blocks), rows, sealed);
  }
  std::vector<RowRange> Rows() const {
    std::vector<RowRange> rows;
    for (const RowPiece& piece : pieces_.all()) rows.push_back(piece.rows);
    return rows;
  }

  ByteBudget budget_{1 << 24};
  std::shared_ptr<RunUsage> usage_ = std::make_shared<RunUsage>(budget_);
  RunInfo run_{.run = "r", .geometry = std::make_shared<Geometry>(TestGeometry()), .options = {.block_rows = 32}};
  const std::shared_ptr<MemoryHome> shared_home_ = std::make_shared<MemoryHome>(usage_);
  MemoryHome& home_ = *shared_home_;
  RowPieces pieces_;
  std::vector<RowPiece> replaced_;
};

TEST_F(PieceChangeTest, PiecesMergeWhenTheirWindowEnds) {
  ASSERT_OK(Add(BlockOf({0, 10})));
  ASSERT_OK(Add(BlockOf({10, 20})));
  EXPECT_THAT(Rows(), ElementsAre(RowRange{0, 10}, RowRange{10, 20}));
  ASSERT_OK(Add(BlockOf({20, 32})));
  EXPECT_THAT(Rows(), ElementsAre(RowRange{0, 32}));
  ASSERT_OK(Add(BlockOf({32, 64})));
  EXPECT_THAT(Rows(), ElementsAre(RowRange{0, 32}, RowRange{32, 64}));
}

TEST_F(PieceChangeTest, AWholeWindowIsTakenOverWithoutACopy) {
  run_.options.block_rows = 512;  // Makes blocks above 4 KiB; smaller ones are copied, to save memory.
  Block block = BlockOf({0, 512});
  const uint8_t* bytes = block.bytes.data();
  ASSERT_OK(Add(std::move(block)));
  EXPECT_EQ(Load(pieces_[0].stored)->view.bytes.data(), bytes);
  ASSERT_OK(Apply({}, {512, 512}, true));
  EXPECT_EQ(Load(pieces_[0].stored)->view.bytes.data(), bytes);
}

TEST_F(PieceChangeTest, AnUnrecordedRangeCompletesTheRunBeforeIt) {
  ASSERT_OK(Add(BlockOf({0, 5})));
  ASSERT_OK(Add(BlockOf({5, 8})));
  ASSERT_OK(Apply({}, {8, 12}));
  EXPECT_THAT(Rows(), ElementsAre(RowRange{0, 8}));
  ASSERT_OK(Add(BlockOf({12, 14})));
  ASSERT_OK(Add(BlockOf({14, 20})));
  ASSERT_OK(Apply({}, {20, 20}, true));
  EXPECT_THAT(Rows(), ElementsAre(RowRange{0, 8}, RowRange{12, 20}));
}

TEST_F(PieceChangeTest, ATrimmedBlockIsCutWhenItsRunIsComplete) {
  ASSERT_OK(Add(BlockOf({0, 10})));
  std::vector<Block> blocks;
  blocks.push_back(BlockOf({5, 20}));
  ASSERT_OK(Apply(std::move(blocks), {10, 20}));
  EXPECT_EQ(pieces_[1].stored->rows(), (RowRange{5, 20}));
  EXPECT_EQ(pieces_[1].rows, (RowRange{10, 20}));
  ASSERT_OK(Apply({}, {20, 20}, true));
  EXPECT_THAT(Rows(), ElementsAre(RowRange{0, 20}));
  EXPECT_EQ(pieces_[0].stored->rows(), (RowRange{0, 20}));
}

TEST_F(PieceChangeTest, BlocksEndInTheRunsCodec) {
  for (Codec codec : {Codec::kRaw, Codec::kPacked}) {
    run_.options.codec = codec;
    for (Codec sent : {Codec::kRaw, Codec::kPacked}) {
      pieces_.TakeFrom(0);
      ASSERT_OK(Add(BlockOf({0, 32}, sent)));
      ASSERT_OK(Add(BlockOf({32, 40}, sent), true));
      EXPECT_EQ(pieces_[0].stored->codec(), codec);
      EXPECT_EQ(pieces_[1].stored->codec(), codec);
    }
  }
}

TEST_F(PieceChangeTest, OpenPiecesStayFewAndEachRowIsMergedSeldom) {
  run_.options.block_rows = 4096;
  for (int64_t row = 0; row < 2000; ++row) ASSERT_OK(Add(BlockOf({row, row + 1})));
  EXPECT_LE(pieces_.size(), 64u);
  std::mt19937 random(1);
  for (int64_t row = 2000; row < 4000;) {
    const int64_t end = std::min<int64_t>(4000, row + 1 + random() % 30);
    ASSERT_OK(Add(BlockOf({row, end})));
    row = end;
  }
  EXPECT_LE(pieces_.size(), 96u);
  ASSERT_OK(Apply({}, {4000, 4000}, true));
  EXPECT_THAT(pieces_.all(), SizeIs(1));
}

TEST_F(PieceChangeTest, BlocksThatOthersHoldAreNotReclaimed) {
  ASSERT_OK(Add(BlockOf({0, 10})));
  const std::shared_ptr<StoredBlock> held = pieces_[0].stored;
  std::vector<Block> blocks;
  blocks.push_back(BlockOf({10, 32}));
  PieceChange change(run_, home_, pieces_, std::move(blocks), {10, 32}, false);
  EXPECT_EQ(change.reclaimable_bytes(), 0);
  ByteReservation pool = *budget_.Reserve(change.cost());
  ASSERT_OK(change.Merge());
  EXPECT_THAT(change.Commit(pieces_, pool), SizeIs(1));
  EXPECT_EQ(budget_.used(), pieces_.charged_bytes() + held->cost());
}

TEST_F(PieceChangeTest, ACompletedForkLeavesASharedBlockWhole) {
  ASSERT_OK(Add(BlockOf({0, 32})));
  RowPieces parent = std::move(pieces_);
  pieces_ = parent.Prefix(20);
  PieceChange change(run_, home_, pieces_, {}, {20, 20}, true);
  EXPECT_EQ(change.cost(), 0);
  ByteReservation pool;
  ASSERT_OK(change.Merge());
  EXPECT_THAT(change.Commit(pieces_, pool), IsEmpty());
  EXPECT_THAT(Rows(), ElementsAre(RowRange{0, 20}));
}

TEST_F(PieceChangeTest, DamageIsFoundAndChangesNothing) {
  Block damaged = BlockOf({0, 10});
  damaged.bytes.data()[3] ^= 1;
  ASSERT_OK(Add(std::move(damaged)));
  const absl::Status status = Add(BlockOf({10, 32}));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Rows(), ElementsAre(RowRange{0, 10}));
  EXPECT_EQ(budget_.used(), pieces_.charged_bytes());
}

}  // namespace
}  // namespace routing_replay::server
