// Rows belong to tokens: another trajectory under a used id is rejected by name.
#include "server/store/conformance/conformance.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr auto kExists = absl::StatusCode::kAlreadyExists;
constexpr Trajectory kPlain{};
constexpr Trajectory kOther{.tokens = 2, .routes = 2};
constexpr Trajectory kRerouted{.tokens = 1, .routes = 2};

TEST_P(StoreConformance, AnotherTrajectoryUnderTheSameIdIsRejected) {
  for (bool sealed : {false, true}) {
    for (bool strict : {false, true}) {
      ReopenRun({.strict = strict, .block_rows = kWindow});
      Fill("s", 100);
      if (sealed) {
        ASSERT_OK(store_->Seal("run", Producer::kRollout, "s", 101, 0));
      }
      // An append of another trajectory is rejected, whether it has fewer rows than the sample, as many or more, with a
      // seal or without. Below, the same holds for appends that begin in the middle or at the end.
      for (int64_t end : {10, 32, 40, 100, 120}) {
        EXPECT_EQ(Rejected({.from = kOther, .rows = {0, end}}, kExists, Reason::kOtherTokens).first_differing_block, 0);
        Rejected({.from = kOther, .rows = {0, end}, .seal_num_tokens = end + 1}, kExists, Reason::kOtherTokens);
      }
      const AppendSpec middle{.from = kOther, .rows = {40, 120}, .token_check_start = true};
      EXPECT_EQ(Rejected(middle, kExists, Reason::kOtherTokens).first_differing_block, 1);
      const AppendSpec next{.from = kOther, .rows = {100, 120}, .token_check_start = true};
      EXPECT_EQ(Rejected(next, kExists, Reason::kOtherTokens).first_differing_block, 3);
    }
  }
}

TEST_P(StoreConformance, TheFirstDifferingBlockIsNamed) {
  Fill("s", 100);
  AppendCommand command = MakeAppend(run_, {.rows = {0, 120}});
  command.header.token_ids[70 * 4] ^= 1;
  const absl::StatusOr<AppendAck> ack = store_->Append(std::move(command));
  EXPECT_THAT(ack, Fails(kExists, Reason::kOtherTokens));
  EXPECT_EQ(GetErrorDetail(ack.status())->first_differing_block, 2);
  EXPECT_EQ(Stat("s").committed_rows, 100);
}

TEST_P(StoreConformance, RowsShiftedByOneAreRejected) {
  for (int64_t committed : {50, 64}) {
    ReopenRun({.block_rows = kWindow});
    Fill("s", committed);
    // The writer is one row off: it sends the tokens of the rows from committed + 1 on as those of the rows from
    // `committed` on.
    AppendCommand command = MakeAppend(run_, {.rows = {committed, committed + 20}});
    command.header.token_ids = kPlain.TokenIds({committed + 1, committed + 21});
    command.header.token_check_start = kPlain.TokenCheckAt(committed + 1);
    EXPECT_THAT(store_->Append(std::move(command)), Fails(kExists, Reason::kOtherTokens));
    // Stored rows that are sent again with tokens shifted by one are rejected as well.
    AppendCommand repeat = MakeAppend(run_, {.rows = {0, 48}});
    repeat.header.token_ids = kPlain.TokenIds({1, 49});
    EXPECT_THAT(store_->Append(std::move(repeat)), Fails(kExists, Reason::kOtherTokens));
    EXPECT_EQ(Read("s"), ExpectedRows(geometry(), kPlain, committed));
  }
}

TEST_P(StoreConformance, TokensThatCannotBeComparedWithEqualRoutesAreCounted) {
  Fill("s", 100);
  ASSERT_OK_AND_ASSIGN(const AppendAck tail, Append({.rows = {0, 80}}));
  EXPECT_EQ(tail.unverified_rows, 16);
  ASSERT_OK_AND_ASSIGN(const AppendAck head, Append({.rows = {40, 100}}));
  EXPECT_EQ(head.unverified_rows, 24);
  ASSERT_OK_AND_ASSIGN(const AppendAck none, Append({.rows = {40, 100}, .token_check_start = true}));
  EXPECT_EQ(none.unverified_rows, 0);
}

TEST_P(StoreConformance, TokensThatCannotBeComparedWithOtherRoutesAreRejected) {
  Fill("s", 100);
  const ErrorDetail tail = Rejected({.from = kRerouted, .rows = {0, 80}}, kExists, Reason::kOtherTokens);
  EXPECT_EQ(tail.first_differing_block, 2);
  EXPECT_EQ(tail.row, 64);
  const ErrorDetail head = Rejected({.from = kRerouted, .rows = {40, 100}}, kExists, Reason::kOtherTokens);
  EXPECT_EQ(head.row, 40);
}

TEST_P(StoreConformance, WithoutTokensOnlyRoutesAreCompared) {
  Fill("s", 50);
  ASSERT_OK_AND_ASSIGN(const AppendAck blind, Append({.from = kOther, .rows = {0, 50}, .token_ids = false}));
  EXPECT_EQ(blind.unverified_rows, 50);
  EXPECT_EQ(blind.conflicting_rows, 50);
  // Without tokens from the first writer the store has no token check, so it cannot compare the tokens of the second.
  ASSERT_OK(Append({.sample = "blind", .rows = {0, 50}, .token_ids = false}));
  EXPECT_EQ(Stat("blind").token_check, std::nullopt);
  ASSERT_OK_AND_ASSIGN(const AppendAck knowing, Append({.sample = "blind", .from = kOther, .rows = {0, 50}}));
  EXPECT_EQ(knowing.unverified_rows, 50);
  EXPECT_EQ(knowing.conflicting_rows, 50);
}

TEST_P(StoreConformance, AStartCheckMakesTheTokensKnownAgain) {
  ASSERT_OK(Append({.rows = {0, 40}}));
  EXPECT_EQ(Stat("s").token_check, (TokenCheck{40, kPlain.TokenCheckAt(40)}));
  ASSERT_OK(Append({.rows = {40, 60}, .token_ids = false}));
  EXPECT_EQ(Stat("s").token_check, std::nullopt);
  ASSERT_OK(Append({.rows = {60, 70}}));
  EXPECT_EQ(Stat("s").token_check, std::nullopt);
  ASSERT_OK(Append({.rows = {70, 90}, .token_check_start = true}));
  EXPECT_EQ(Stat("s").token_check, (TokenCheck{90, kPlain.TokenCheckAt(90)}));
  Rejected({.from = kOther, .rows = {90, 95}, .token_check_start = true}, kExists, Reason::kOtherTokens);
}

TEST_P(StoreConformance, RowsWithoutTokensBehindOthersLeaveWhatIsKnown) {
  for (int64_t known : {40, 64}) {
    ReopenRun({.block_rows = kWindow});
    ASSERT_OK(Append({.rows = {0, known}}));
    const std::vector<RowRange> rest = {{known, 90}};
    ASSERT_OK(Append({.rows = rest[0], .unrecorded = rest, .token_ids = false, .seal_num_tokens = 91}));
    const auto matches = [&](int64_t rows, uint32_t crc) {
      const auto snapshot = store_->Snapshot("run", Producer::kRollout, {.sample = "s"}, {});
      EXPECT_OK(snapshot);
      return snapshot.ok() ? snapshot->tokens.Fits(rows, crc) : std::nullopt;
    };
    EXPECT_EQ(matches(known, kPlain.TokenCheckAt(known)), true);
    EXPECT_EQ(matches(known, kOther.TokenCheckAt(known)), false);
    EXPECT_EQ(matches(90, kPlain.TokenCheckAt(90)), std::nullopt);
    // The same for an append that extends beyond these rows.
    Rejected({.from = kOther, .rows = {0, 60}}, kExists, Reason::kOtherTokens);
  }
}

TEST_P(StoreConformance, ASealMayTellTheTokens) {
  for (int64_t rows : {50, 64}) {
    ReopenRun({.block_rows = kWindow});
    ASSERT_OK(Append({.rows = {0, rows}, .token_ids = false}));
    ASSERT_OK(Append({.rows = {rows, rows}, .token_check_start = true, .seal_num_tokens = rows + 1}));
    EXPECT_EQ(Stat("s").token_check, (TokenCheck{rows, kPlain.TokenCheckAt(rows)}));
    EXPECT_EQ(Read("s"), ExpectedRows(geometry(), kPlain, rows));
    Rejected({.from = kOther, .rows = {rows, rows}, .token_check_start = true}, kExists, Reason::kOtherTokens);
  }
}

TEST_P(StoreConformance, ASnapshotTellsWhichTokensFitWhereItCan) {
  Fill("s", 70);
  const auto matches = [&](const std::string& sample, int64_t rows, uint32_t crc) {
    const auto snapshot = store_->Snapshot("run", Producer::kRollout, {.sample = sample}, {});
    EXPECT_OK(snapshot);
    return snapshot->tokens.Fits(rows, crc);
  };
  for (int64_t rows : {0, 32, 64, 70}) {
    EXPECT_EQ(matches("s", rows, kPlain.TokenCheckAt(rows)), true) << rows;
    EXPECT_EQ(matches("s", rows, kPlain.TokenCheckAt(rows) ^ 1), false) << rows;
  }
  for (int64_t rows : {-1, 1, 31, 69, 71, 96, 1000}) EXPECT_EQ(matches("s", rows, 0), std::nullopt) << rows;
  ASSERT_OK(Append({.sample = "blind", .rows = {0, 32}, .token_ids = false}));
  EXPECT_EQ(matches("blind", 32, 0), std::nullopt);
}

// A snapshot's rows and tokens belong together, and later changes of the sample are not visible in it.
TEST_P(StoreConformance, ASnapshotHasTheTokensOfItsRows) {
  Fill("s", 70);
  const std::vector<RowRange> all{{0, 100}};
  ASSERT_OK_AND_ASSIGN(const SampleSnapshot before, store_->Snapshot("run", Producer::kRollout, {.sample = "s"}, all));
  ASSERT_OK(Append({.from = kOther, .rows = {0, 70}, .restart_nonce = 5}));
  EXPECT_EQ(before.tokens.Fits(70, kPlain.TokenCheckAt(70)), true);
  EXPECT_EQ(before.tokens.Fits(70, kOther.TokenCheckAt(70)), false);
  ASSERT_OK_AND_ASSIGN(const SampleSnapshot after, store_->Snapshot("run", Producer::kRollout, {.sample = "s"}, all));
  EXPECT_EQ(after.tokens.Fits(70, kOther.TokenCheckAt(70)), true);
}

}  // namespace
}  // namespace routing_replay::testing
