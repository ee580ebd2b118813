// The checks of the quick start must fail when something is wrong.
#include "tests/quickstart/rank_check.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/quickstart/expected_rows.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::quickstart {
namespace {

using trainer::BufferLayout;
using trainer::RowState;

// Three rows (replayed, unrecorded, pad) of decoder layers 1 and 2 of 3. E is 300, so ids are u16; K is 2.
class RankCheckTest : public ::testing::Test {
 protected:
  RankCheckTest()
      : buffer_(*BufferLayout::Create(Geometry::Uniform(3, 300, 2), {.ordinals = {1, 2}, .rows = 3})),
        indices_(buffer_.bytes()) {
    for (int32_t slot = 0; slot < 2; ++slot) {
      SetIds(slot, 0, truth_[2 + 2 * slot], truth_[3 + 2 * slot]);
      SetIds(slot, 2, 5, 6);
    }
  }
  void SetIds(int32_t slot, int64_t row, uint16_t first, uint16_t second) {
    const uint16_t ids[] = {first, second};
    std::memcpy(&buffer_.slab(absl::MakeSpan(indices_), slot)[row * sizeof(ids)], ids, sizeof(ids));
  }
  absl::Status Check() {
    const InjectedRows rows{buffer_, indices_, states_};
    const absl::Status status = CheckIndices(rows, expected_, result_);
    return status.ok() ? CheckRouter(rows, expected_, 1, result_) : status;
  }

  const std::vector<uint16_t> truth_ = {0, 1, 299, 17, 256, 0};
  BufferLayout buffer_;
  std::vector<uint8_t> indices_;
  std::vector<RowState> states_ = {RowState::kReplayed, RowState::kUnrecorded, RowState::kPad};
  const std::vector<ExpectedRow> expected_ = {
      {RowState::kReplayed, truth_}, {RowState::kUnrecorded, {}}, {RowState::kPad, {}}};
  RankResult result_;
};

TEST_F(RankCheckTest, CountsWhatItCompares) {
  ASSERT_OK(Check());
  EXPECT_EQ(result_.compared_ids, 4);
  EXPECT_EQ(result_.replayed_rows, 1);
  EXPECT_EQ(result_.unrecorded_rows, 1);
  EXPECT_EQ(result_.pad_rows, 1);
  EXPECT_EQ(result_.router_rows, 6);
}

TEST_F(RankCheckTest, FindsOtherLayers) {
  EXPECT_OK(CheckLayers(buffer_, {1, 2}));
  EXPECT_EQ(CheckLayers(buffer_, {0, 1}).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(CheckLayers(buffer_, {1, 2, 3}).code(), absl::StatusCode::kInternal);
}

TEST(ExpectedOrdinals, AreAnEvenShare) {
  EXPECT_THAT(ExpectedOrdinals(6, 2, 0), ::testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(ExpectedOrdinals(6, 2, 1), ::testing::ElementsAre(3, 4, 5));
}

TEST_F(RankCheckTest, FindsAnotherId) {
  SetIds(1, 0, 0, 0);
  EXPECT_EQ(Check().code(), absl::StatusCode::kInternal);
}

TEST_F(RankCheckTest, FindsAnotherOrder) {
  SetIds(0, 0, 17, 299);
  EXPECT_EQ(Check().code(), absl::StatusCode::kInternal);
}

TEST_F(RankCheckTest, FindsAnotherState) {
  states_[1] = RowState::kReplayed;
  EXPECT_EQ(Check().code(), absl::StatusCode::kInternal);
}

TEST_F(RankCheckTest, FindsADuplicateOnAPad) {
  SetIds(0, 2, 5, 5);
  EXPECT_EQ(Check().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace routing_replay::quickstart
