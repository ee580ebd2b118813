#include "server/store/row_pieces.h"

#include <gtest/gtest.h>

#include <random>

#include "server/store/conformance/conformance.h"

namespace routing_replay::server {
namespace {

using testing::MakeBlock;
using testing::RowIds;
using testing::TestGeometry;
using testing::Trajectory;

std::vector<RowIds> RowsOf(RowRange range, const std::vector<bool>& changed) {
  std::vector<RowIds> rows;
  for (int64_t row = range.begin; row < range.end; ++row) {
    rows.push_back(Trajectory{}.RowAt(TestGeometry(), row));
    if (changed[row]) rows.back()[row % rows.back().size()] ^= 1;
  }
  return rows;
}

// Random pieces, with gaps in the stored and in the new rows. The result must equal a simple count, row by row.
TEST(RowComparisonTest, CountsRowsRecordedOnBothSides) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<bool> changed(96), stored_row(96), new_row(96);
    for (int64_t row = 0; row < 96; ++row) changed[row] = random() % 12 == 0;
    RowPieces stored;
    std::vector<Block> blocks;
    for (bool is_new : {false, true}) {
      for (int64_t begin = random() % 5; begin < 96;) {
        const int64_t end =
            std::min<int64_t>({96, begin + 1 + static_cast<int64_t>(random() % 20), (begin / 32 + 1) * 32});
        Block block = MakeBlock(TestGeometry(), begin, RowsOf({begin, end}, is_new ? changed : std::vector<bool>(96)),
                                random() % 2 == 0 ? Codec::kRaw : Codec::kPacked);
        for (int64_t row = begin; row < end; ++row) (is_new ? new_row : stored_row)[row] = true;
        if (is_new) {
          blocks.push_back(std::move(block));
        } else {
          stored.Append({std::make_shared<MemoryHome>(nullptr)->Keep(std::move(block), 0), {begin, end}});
        }
        begin = end + (random() % 3 == 0 ? random() % 6 : 0);
      }
    }
    const int64_t begin = random() % 96;
    const RowRange range{begin, begin + static_cast<int64_t>(random() % (97 - begin))};
    int64_t expected = 0, first = 0;
    for (int64_t row = range.end - 1; row >= range.begin; --row) {
      if (!changed[row] || !stored_row[row] || !new_row[row]) continue;
      ++expected;
      first = row;
    }
    const auto differences = CompareRows(TestGeometry(), stored, blocks, range);
    ASSERT_OK(differences);
    EXPECT_EQ(differences->rows, expected);
    EXPECT_EQ(differences->first_row, first);
  }
}

TEST(RowComparisonTest, ADamagedBlockIsNoConflict) {
  std::vector<bool> none(32);
  Block damaged = MakeBlock(TestGeometry(), 0, RowsOf({0, 32}, none), Codec::kRaw);
  damaged.bytes.data()[7] ^= 1;
  RowPieces stored;
  stored.Append({std::make_shared<MemoryHome>(nullptr)->Keep(std::move(damaged), 0), {0, 32}});
  std::vector<Block> blocks;
  blocks.push_back(MakeBlock(TestGeometry(), 0, RowsOf({0, 32}, none), Codec::kRaw));
  EXPECT_THAT(CompareRows(TestGeometry(), stored, blocks, {0, 32}),
              testing::Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
}

}  // namespace
}  // namespace routing_replay::server
