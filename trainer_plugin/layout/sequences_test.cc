#include "routing_replay/trainer/rows.h"

#include "routing_replay/trainer/context_parallel.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;

TEST(Sequences, LeftPaddedRectangle) {
  const std::vector<uint8_t> mask = {0, 0, 1, 1, /**/ 1, 1, 1, 1, /**/ 0, 0, 0, 0, /**/ 0, 1, 1, 0};
  ASSERT_OK_AND_ASSIGN(const auto kept, SequencesFromMask(mask, 4, true));
  ASSERT_EQ(kept.size(), 4u);
  const int64_t first[] = {2, 0, 0, 1}, tokens[] = {2, 4, 0, 2}, recorded[] = {1, 3, 0, 1};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(kept[i].first_row, first[i]);
    EXPECT_EQ(kept[i].tokens, tokens[i]);
    EXPECT_EQ(kept[i].recorded_rows, recorded[i]);
  }
  ASSERT_OK_AND_ASSIGN(const auto stripped, SequencesFromMask(mask, 4, false));
  EXPECT_EQ(stripped[0].first_row, 0);
  EXPECT_EQ(stripped[0].tokens, 2);
}

TEST(Sequences, MasksThatCannotBe) {
  const std::vector<uint8_t> gap = {1, 0, 1, 1}, odd = {1, 1, 1}, two = {2, 1};
  EXPECT_THAT(SequencesFromMask(gap, 4, true), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  EXPECT_THAT(SequencesFromMask(odd, 2, true), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  EXPECT_THAT(SequencesFromMask(odd, 0, true), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  EXPECT_THAT(SequencesFromMask(two, 2, true), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

TEST(Sequences, RealBoundaries) {
  const std::vector<int64_t> cu = {0, 5, 5, 7};
  ASSERT_OK_AND_ASSIGN(const auto sequences, SequencesFromCuSeqlens(cu));
  ASSERT_EQ(sequences.size(), 3u);
  EXPECT_EQ(sequences[0].tokens, 5);
  EXPECT_EQ(sequences[0].recorded_rows, 4);
  EXPECT_EQ(sequences[1].recorded_rows, 0);
  const std::vector<int64_t> late = {1, 2}, descends = {0, 2, 1}, none;
  for (const auto& bad : {late, descends, none}) {
    EXPECT_THAT(SequencesFromCuSeqlens(bad), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  }
}

TEST(Sequences, MediaBecomeRows) {
  const std::vector<int64_t> media = {256, 1, 64}, none, empty_medium = {0}, huge = {int64_t{1} << 62};
  ASSERT_OK_AND_ASSIGN(const int64_t tokens, MediaExpandedTokens(10, media));
  EXPECT_EQ(tokens, 10 + 255 + 0 + 63);
  ASSERT_OK_AND_ASSIGN(const int64_t same, MediaExpandedTokens(10, none));
  EXPECT_EQ(same, 10);
  EXPECT_THAT(MediaExpandedTokens(2, media), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  EXPECT_THAT(MediaExpandedTokens(2, empty_medium), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(MediaExpandedTokens(2, huge), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

TEST(ContextParallel, Hierarchical) {
  const std::vector<int32_t> two_by_four = {2, 4}, three = {3, 3}, zero = {0}, large(40, 1 << 20);
  EXPECT_OK(CheckHierarchicalCp(two_by_four, 8));
  EXPECT_THAT(CheckHierarchicalCp(two_by_four, 4), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  EXPECT_THAT(CheckHierarchicalCp(three, 8), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  EXPECT_THAT(CheckHierarchicalCp(zero, 8), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(CheckHierarchicalCp(large, 8), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
}

TEST(ContextParallel, LocalGroupsAreNeighbours) {
  for (int32_t rank = 0; rank < 8; ++rank) {
    ASSERT_OK_AND_ASSIGN(const CpRank local, LocalCpRank(rank, 8, 4));
    EXPECT_EQ(local, (CpRank{.size = 4, .rank = rank % 4}));
  }
  EXPECT_THAT(LocalCpRank(8, 8, 4), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(LocalCpRank(0, 12, 3), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  EXPECT_THAT(LocalCpRank(0, 12, 8), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  EXPECT_THAT(LocalCpRank(0, 0, 1), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

}  // namespace
}  // namespace routing_replay::trainer
