#include "client/trajectory/trajectory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using testing::Fails;
using Step = TurnDecision::Step;

constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

std::vector<uint32_t> Count(uint32_t tokens) {
  std::vector<uint32_t> ids(tokens);
  for (uint32_t i = 0; i < tokens; ++i) ids[i] = i;
  return ids;
}

RowMark Mark(uint64_t digest) { return {RowMark::Kind::kRecorded, digest}; }

// Returns marks for these rows. The mark of row r has the digest r + `version`.
std::vector<RowMark> Marks(RowRange rows, uint64_t version = 0) {
  std::vector<RowMark> marks;
  for (int64_t row = rows.begin; row < rows.end; ++row) marks.push_back(Mark(static_cast<uint64_t>(row) + version));
  return marks;
}

// Decides and commits a turn that must need only appends, and no other call to the server.
TurnDecision Do(Trajectory& trajectory, const Turn& turn, uint64_t version = 0) {
  auto decision = trajectory.Decide(turn);
  EXPECT_OK(decision.status());
  EXPECT_EQ(decision->step, Step::kAppend);
  EXPECT_OK(trajectory.Refine(turn, Marks(decision->compare, version), *decision));
  trajectory.Commit(turn, *decision, Marks(decision->fresh, version));
  return *decision;
}

TEST(TrajectoryTest, TheBoundaryRowIsTheNextRow) {
  Trajectory trajectory({.sample = "s"});
  const std::vector<uint32_t> tokens = Count(10);
  const auto context = absl::MakeConstSpan(tokens);
  EXPECT_EQ(trajectory.NextRow(context.first(4)), 0);
  EXPECT_EQ(Do(trajectory, {.tokens = context.first(6), .rows = RowRange{0, 5}}).fresh, (RowRange{0, 5}));
  EXPECT_EQ(trajectory.NextRow(context.first(8)), 5);
  EXPECT_EQ(Do(trajectory, {.tokens = context, .rows = RowRange{5, 9}}).fresh, (RowRange{5, 9}));
  const TurnDecision seal = Do(trajectory, {.seal = true});
  EXPECT_EQ(seal.seal_num_tokens, 10);
  EXPECT_TRUE(seal.fresh.empty());
  EXPECT_TRUE(trajectory.sealed());
}

TEST(TrajectoryTest, ARowForTheLastTokenIsLeftOut) {
  Trajectory trajectory({.sample = "s"});
  const std::vector<uint32_t> tokens = Count(6);
  const TurnDecision decision = Do(trajectory, {.tokens = tokens, .rows = RowRange{0, 6}});
  EXPECT_EQ(decision.fresh, (RowRange{0, 5}));
  EXPECT_EQ(decision.surplus_rows, 1);
  Trajectory other({.sample = "s"});
  for (const RowRange rows : {RowRange{0, 7}, RowRange{0, 4}, RowRange{-1, 5}}) {
    EXPECT_THAT(other.Decide({.tokens = tokens, .rows = rows}),
                Fails(absl::StatusCode::kInvalidArgument, Reason::kRowCount));
  }
}

TEST(TrajectoryTest, OtherTokensTakeRowsBackFromTheFirstOnThatDiffers) {
  Trajectory trajectory({.sample = "s"});
  std::vector<uint32_t> tokens = Count(10);
  Do(trajectory, {.tokens = tokens, .rows = RowRange{0, 9}});
  tokens[6] = 99;
  EXPECT_EQ(trajectory.NextRow(tokens), 6);
  const Turn turn{.tokens = tokens, .rows = RowRange{4, 9}};
  ASSERT_OK_AND_ASSIGN(const TurnDecision decision, trajectory.Decide(turn));
  EXPECT_EQ(decision.step, Step::kTruncate);
  EXPECT_EQ(decision.truncate_rows, 6);
  EXPECT_EQ(decision.retokenised_at, 6);
  // The client does not know whether the truncation was done, so it must ask the server. The server answers that it
  // was.
  trajectory.OnTruncateFailed();
  ASSERT_OK_AND_ASSIGN(const TurnDecision doubt, trajectory.Decide(turn));
  EXPECT_EQ(doubt.step, Step::kAsk);
  ASSERT_OK(trajectory.OnState(SampleState{.committed_rows = 6, .revision = 1}));
  EXPECT_EQ(Do(trajectory, turn).fresh, (RowRange{6, 9}));
  EXPECT_EQ(trajectory.revision(), 1);
  // A wrong turn truncates nothing.
  tokens[2] = 98;
  EXPECT_THAT(trajectory.Decide({.tokens = tokens, .rows = RowRange{3, 9}}), Fails(kPrecondition, Reason::kGap));
  EXPECT_EQ(trajectory.rows(), 9);
}

TEST(TrajectoryTest, FirstWriteWins) {
  for (const bool strict : {false, true}) {
    Trajectory trajectory({.sample = "s", .strict = strict});
    const std::vector<uint32_t> tokens = Count(10);
    Do(trajectory, {.tokens = absl::MakeConstSpan(tokens).first(6), .rows = RowRange{0, 5}});
    const Turn turn{.tokens = tokens, .rows = RowRange{0, 9}};
    ASSERT_OK_AND_ASSIGN(TurnDecision decision, trajectory.Decide(turn));
    EXPECT_EQ(decision.compare, (RowRange{0, 5}));
    EXPECT_EQ(decision.fresh, (RowRange{5, 9}));
    std::vector<RowMark> marks = Marks({0, 5});
    marks[2].digest = 77;
    marks[4] = {};  // Unset: no conflict.
    const absl::Status refined = trajectory.Refine(turn, marks, decision);
    if (strict) {
      EXPECT_THAT(refined, Fails(absl::StatusCode::kAlreadyExists, Reason::kConflictingRows));
      EXPECT_EQ(GetErrorDetail(refined)->row, 2);
    } else {
      ASSERT_OK(refined);
      EXPECT_EQ(decision.conflicting_rows, 1);
    }
  }
}

TEST(TrajectoryTest, AbortsLeaveRowsOpenAndGapsMustBeDeclared) {
  Trajectory trajectory({.sample = "s"});
  const std::vector<uint32_t> tokens = Count(20);
  const auto context = absl::MakeConstSpan(tokens);
  Do(trajectory, {.tokens = context.first(6), .rows = RowRange{0, 5}});
  Do(trajectory, {.outcome = TurnOutcome::kAborted});
  Do(trajectory, {.tokens = context.first(10), .rows = RowRange{5, 7}, .outcome = TurnOutcome::kAborted});
  EXPECT_EQ(trajectory.rows(), 7);
  EXPECT_THAT(trajectory.Decide({.seal = true}), Fails(kPrecondition, Reason::kNotCommitted));
  Turn turn{.tokens = tokens, .rows = RowRange{9, 19}};
  const auto gap = trajectory.Decide(turn);
  EXPECT_THAT(gap, Fails(kPrecondition, Reason::kGap));
  EXPECT_EQ(GetErrorDetail(gap.status())->row, 7);
  turn.missing_is_unrecorded = true;
  const TurnDecision decision = Do(trajectory, turn);
  EXPECT_EQ(decision.gap, (RowRange{7, 9}));
  EXPECT_EQ(decision.fresh, (RowRange{9, 19}));
}

TEST(TrajectoryTest, ForksShareWhatIsAcknowledgedAndTheSame) {
  Trajectory parent({.sample = "p"});
  const std::vector<uint32_t> tokens = Count(10);
  Do(parent, {.tokens = tokens, .rows = RowRange{0, 9}});
  std::vector<uint32_t> branch = tokens;
  branch[8] = 50;
  const Turn turn{.tokens = branch, .rows = RowRange{0, 9}};
  Trajectory early = parent.Fork("early");
  EXPECT_EQ(Do(early, turn).prefix, std::nullopt);
  parent.OnOutcome({.sample = "p", .status = absl::OkStatus(), .committed_rows = 9});

  Trajectory same = parent.Fork("same");
  EXPECT_EQ(same.NextRow(branch), 8);
  const TurnDecision decision = Do(same, turn);
  EXPECT_EQ(decision.prefix, (PrefixReference{"p", 8, 0}));
  EXPECT_EQ(decision.fresh, (RowRange{8, 9}));

  Trajectory other = parent.Fork("other");
  ASSERT_OK_AND_ASSIGN(TurnDecision otherwise, other.Decide(turn));
  std::vector<RowMark> marks = Marks(otherwise.compare);
  marks[3].digest = 77;
  ASSERT_OK(other.Refine(turn, marks, otherwise));
  EXPECT_EQ(otherwise.prefix, (PrefixReference{"p", 3, 0}));
  EXPECT_EQ(otherwise.fresh, (RowRange{3, 9}));

  Trajectory none = parent.Fork("none");
  EXPECT_EQ(Do(none, turn, 1000).prefix, std::nullopt);
  EXPECT_EQ(none.rows(), 9);
}

TEST(TrajectoryTest, RowsThatWereNotGivenAreSharedByTheirTokens) {
  Trajectory parent({.sample = "p"});
  const std::vector<uint32_t> tokens = Count(10);
  Do(parent, {.tokens = tokens, .rows = RowRange{0, 9}});
  parent.OnOutcome({.sample = "p", .status = absl::OkStatus(), .committed_rows = 9});
  Trajectory fork = parent.Fork("f");
  EXPECT_EQ(Do(fork, {.tokens = tokens, .rows = RowRange{6, 9}}).shared_rows(), 9);
}

// A row for the last token is left out. Only for rows 1 … T − 1 it is an error, because these may really be rows
// 0 … T − 2 of an engine that ignored the start.
TEST(TrajectoryTest, ARowOfTheLastTokenIsLeftOutWhereNothingElseItCanBe) {
  const std::vector<uint32_t> tokens = Count(10);
  for (const int64_t start : {0, 1, 2, 5}) {
    Trajectory trajectory({.sample = "s"});
    Do(trajectory, {.tokens = absl::MakeConstSpan(tokens).first(start + 1), .rows = RowRange{0, start}});
    const absl::StatusOr<TurnDecision> decision = trajectory.Decide({.tokens = tokens, .rows = RowRange{start, 10}});
    if (start == 1) {
      EXPECT_THAT(decision, Fails(absl::StatusCode::kInvalidArgument, Reason::kRowCount));
      EXPECT_EQ(GetErrorDetail(decision.status())->field, "turn.rows");
      continue;
    }
    ASSERT_OK(decision);
    EXPECT_EQ(decision->surplus_rows, 1);
    EXPECT_EQ(decision->fresh, (RowRange{start, 9}));
  }
}

TEST(TrajectoryTest, CutsGoWithTheTokensAndOpenASealedSample) {
  Trajectory trajectory({.sample = "s"});
  const std::vector<uint32_t> tokens = Count(10);
  Do(trajectory, {.tokens = tokens, .rows = RowRange{0, 9}, .seal = true});
  EXPECT_THAT(trajectory.Decide({.tokens = absl::MakeConstSpan(tokens).first(6)}),
              Fails(kPrecondition, Reason::kSealed));
  const Turn cut{.tokens = absl::Span<const uint32_t>(), .tokens_start = 6, .seal = true, .cut = true};
  ASSERT_OK_AND_ASSIGN(const TurnDecision decision, trajectory.Decide(cut));
  EXPECT_EQ(decision.step, Step::kTruncate);
  EXPECT_EQ(decision.truncate_rows, 5);
  trajectory.OnTruncated({.committed_rows = 5, .revision = 1});
  EXPECT_EQ(Do(trajectory, cut).seal_num_tokens, 6);
  EXPECT_EQ(trajectory.num_tokens(), 6);
}

}  // namespace
}  // namespace routing_replay::client
