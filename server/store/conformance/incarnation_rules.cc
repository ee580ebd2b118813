// Revisions, restarts, truncation and seals.
#include "server/store/conformance/conformance.h"
#include "server/store/sample_rules.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kRollout = Producer::kRollout;
constexpr Trajectory kPlain{};
constexpr Trajectory kSecond{.tokens = 2, .routes = 2};

TEST_P(StoreConformance, AnAppendFromBeforeATruncateNeverLands) {
  Fill("s", 50);
  ASSERT_OK_AND_ASSIGN(const SampleState state, store_->Truncate("run", kRollout, "s", 20, 0));
  EXPECT_EQ(state.revision, 1);
  EXPECT_EQ(state.committed_rows, 20);
  for (RowRange rows : {RowRange{20, 30}, RowRange{0, 50}, RowRange{20, 20}}) {
    EXPECT_EQ(Rejected({.rows = rows}, kPrecondition, Reason::kOldRevision).revision, 1);
  }
  Rejected({.rows = {20, 30}, .revision = 2}, kPrecondition, Reason::kOldRevision);
  ASSERT_OK(Append({.rows = {20, 60}, .token_check_start = true, .revision = 1}));
  EXPECT_EQ(Read("s"), ExpectedRows(geometry(), kPlain, 60));
}

TEST_P(StoreConformance, TruncateTakesRowsBack) {
  const std::vector<RowRange> unrecorded{{10, 20}, {30, 34}, {60, 70}};
  ASSERT_OK(Append({.rows = {0, 40}, .unrecorded = {{10, 20}, {30, 34}}, .weight_version = 1}));
  ASSERT_OK(Append({.rows = {40, 80}, .unrecorded = {{60, 70}}, .weight_version = 2, .seal_num_tokens = 81}));
  int64_t revision = 0;
  for (int64_t rows : {80, 65, 64, 50, 40, 33, 32, 15, 5, 0}) {
    ASSERT_OK_AND_ASSIGN(const SampleState state, store_->Truncate("run", kRollout, "s", rows, revision));
    EXPECT_EQ(state.revision, ++revision);
    EXPECT_FALSE(state.sealed());
    EXPECT_EQ(state.unrecorded, Clip(unrecorded, {0, rows}));
    EXPECT_EQ(Read("s"), ExpectedRows(geometry(), kPlain, rows, Clip(unrecorded, {0, rows})));
    EXPECT_EQ(state.weights.empty() ? 0 : state.weights.back().rows.end, rows);
  }
  ASSERT_OK(Append({.from = kSecond, .rows = {0, 70}, .revision = revision, .seal_num_tokens = 71}));
  EXPECT_EQ(Read("s"), ExpectedRows(geometry(), kSecond, 70));
}

TEST_P(StoreConformance, TruncateIsRejectedWhereItMakesNoSense) {
  Fill("s", 50);
  const SampleLook before = Look("s");
  EXPECT_THAT(store_->Truncate("run", kRollout, "s", 51, std::nullopt),
              Fails(absl::StatusCode::kOutOfRange, Reason::kNotCommitted));
  EXPECT_THAT(store_->Truncate("run", kRollout, "s", -1, std::nullopt), Fails(kInvalid, Reason::kField));
  EXPECT_THAT(store_->Truncate("run", kRollout, "s", 10, 1), Fails(kPrecondition, Reason::kOldRevision));
  EXPECT_THAT(store_->Truncate("run", kRollout, "none", 0, std::nullopt),
              Fails(absl::StatusCode::kNotFound, Reason::kNoSample));
  EXPECT_EQ(Look("s"), before);
  EXPECT_OK(store_->Truncate("run", kRollout, "s", 50, std::nullopt));
}

TEST_P(StoreConformance, ARestartReplacesTheIncarnation) {
  ASSERT_OK(Append({.rows = {0, 50}, .group = 3, .seal_num_tokens = 51}));
  ASSERT_OK_AND_ASSIGN(const AppendAck first, Append({.from = kSecond, .rows = {0, 10}, .restart_nonce = 77}));
  EXPECT_EQ(first.revision, 1);
  EXPECT_EQ(first.committed_rows, 10);
  EXPECT_EQ(first.trimmed_rows, 0);
  EXPECT_FALSE(first.sealed);
  EXPECT_EQ(Stat("s").group, 3);
  // The writer has not heard of the new revision yet. Its retries and further appends name the old one, and are
  // accepted because they have the nonce of the restart.
  ASSERT_OK(Append({.from = kSecond, .rows = {0, 10}, .restart_nonce = 77}));
  ASSERT_OK(Append({.from = kSecond, .rows = {10, 40}, .restart_nonce = 77}));
  EXPECT_EQ(Stat("s").revision, 1);
  EXPECT_EQ(Read("s"), ExpectedRows(geometry(), kSecond, 40));
  // The old incarnation has ended. A second restart that names its revision is rejected.
  Rejected({.rows = {40, 50}}, kPrecondition, Reason::kOldRevision);
  Rejected({.rows = {0, 10}, .restart_nonce = 78}, kPrecondition, Reason::kOldRevision);
  ASSERT_OK(Append({.rows = {0, 10}, .revision = 1, .restart_nonce = 78}));
  EXPECT_EQ(Stat("s").revision, 2);
}

TEST_P(StoreConformance, ARestartOfNothingOpensTheSample) {
  ASSERT_OK(Append({.rows = {0, 10}, .restart_nonce = 5}));
  ASSERT_OK(Append({.rows = {10, 20}, .restart_nonce = 5}));
  EXPECT_EQ(Stat("s").revision, 0);
  EXPECT_EQ(Stat("s").committed_rows, 20);
}

TEST_P(StoreConformance, ATruncateEndsTheNonce) {
  ASSERT_OK(Append({.rows = {0, 10}, .restart_nonce = 5}));
  ASSERT_OK(store_->Truncate("run", kRollout, "s", 5, std::nullopt));
  EXPECT_EQ(Rejected({.rows = {5, 10}, .restart_nonce = 5}, kPrecondition, Reason::kOldRevision).revision, 1);
}

TEST_P(StoreConformance, AnAttemptReplacesEarlierOnesAndNoLaterOne) {
  const auto attempt = [](uint64_t number) { return kAttempt | number; };
  ASSERT_OK(Append({.rows = {0, 50}, .restart_nonce = attempt(1), .seal_num_tokens = 51}));
  // Attempts need not know the revision, and attempt numbers may be skipped.
  ASSERT_OK_AND_ASSIGN(const AppendAck third, Append({.from = kSecond, .rows = {0, 10}, .restart_nonce = attempt(3)}));
  EXPECT_EQ(third.committed_rows, 10);
  EXPECT_FALSE(third.sealed);
  const SampleLook before = Look("s");
  Rejected({.rows = {0, 50}, .restart_nonce = attempt(1)}, kPrecondition, Reason::kOldRevision);
  Rejected({.rows = {10, 50}, .restart_nonce = attempt(2)}, kPrecondition, Reason::kOldRevision);
  // An append that does not begin at row 0 does not start a new incarnation.
  EXPECT_EQ(Rejected({.rows = {10, 20}, .restart_nonce = attempt(4)}, kPrecondition, Reason::kGap).committed_rows, 0);
  EXPECT_EQ(Look("s"), before);
  ASSERT_OK(Append({.from = kSecond, .rows = {10, 40}, .restart_nonce = attempt(3)}));
  EXPECT_EQ(Read("s"), ExpectedRows(geometry(), kSecond, 40));
  // After a truncation the attempt number is still known.
  ASSERT_OK(store_->Truncate("run", kRollout, "s", 5, std::nullopt));
  Rejected({.rows = {0, 10}, .restart_nonce = attempt(2)}, kPrecondition, Reason::kOldRevision);
  const int64_t revision = Rejected({.rows = {5, 10}, .restart_nonce = attempt(3)}, kPrecondition, Reason::kOldRevision)
                               .revision.value_or(-1);
  EXPECT_EQ(Read("s"), ExpectedRows(geometry(), kSecond, 5));
  ASSERT_OK(Append({.from = kSecond, .rows = {5, 10}, .revision = revision, .restart_nonce = attempt(3)}));
  EXPECT_EQ(Read("s"), ExpectedRows(geometry(), kSecond, 10));
  ASSERT_OK(Append({.rows = {0, 20}, .restart_nonce = attempt(4)}));
  EXPECT_EQ(Read("s"), ExpectedRows(geometry(), kPlain, 20));
}

TEST_P(StoreConformance, ARejectedRestartLeavesTheOldLife) {
  Fill("s", 50);
  const ErrorDetail gap = Rejected({.rows = {10, 20}, .restart_nonce = 5}, kPrecondition, Reason::kGap);
  EXPECT_EQ(gap.committed_rows, 0);  // A new incarnation must begin at row 0.
  Rejected({.rows = {0, 20}, .restart_nonce = 5, .seal_num_tokens = 5}, kInvalid, Reason::kRowCount);
  Rejected({.rows = {0, 20}, .restart_nonce = 5, .prefix = PrefixReference{"none", 3, 0}}, absl::StatusCode::kNotFound,
           Reason::kNoSample);
  EXPECT_OK(Append({.rows = {50, 60}}));
}

TEST_P(StoreConformance, ALaterRevisionOfNothingIsRejected) {
  Rejected({.rows = {0, 10}, .revision = 1}, kPrecondition, Reason::kOldRevision);
  EXPECT_FALSE(Exists("s"));
}

TEST_P(StoreConformance, SealEndsASample) {
  Fill("s", 50);
  const uint64_t content = Stat("s").content_id;
  ASSERT_OK_AND_ASSIGN(const SampleState state, store_->Seal("run", kRollout, "s", 51, 0));
  EXPECT_EQ(state.num_tokens, 51);
  EXPECT_EQ(state.content_id, content);
  EXPECT_OK(store_->Seal("run", kRollout, "s", 51, 0));
  EXPECT_THAT(store_->Seal("run", kRollout, "s", 52, 0), Fails(kPrecondition, Reason::kSealed));
  EXPECT_THAT(store_->Seal("run", kRollout, "s", 51, 1), Fails(kPrecondition, Reason::kOldRevision));
  EXPECT_EQ(Read("s"), ExpectedRows(geometry(), kPlain, 50));
}

TEST_P(StoreConformance, SealNeedsItsRows) {
  Fill("s", 50);
  const auto early = store_->Seal("run", kRollout, "s", 60, 0);
  EXPECT_THAT(early, Fails(kPrecondition, Reason::kNotCommitted));
  EXPECT_EQ(GetErrorDetail(early.status())->committed_rows, 50);
  EXPECT_THAT(store_->Seal("run", kRollout, "s", 50, 0), Fails(kInvalid, Reason::kRowCount));
  EXPECT_THAT(store_->Seal("run", kRollout, "s", 0, 0), Fails(kInvalid, Reason::kRowCount));
  EXPECT_THAT(store_->Seal("run", kRollout, "none", 1, 0), Fails(absl::StatusCode::kNotFound, Reason::kNoSample));
  EXPECT_THAT(store_->Seal("none", kRollout, "s", 1, 0), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  EXPECT_FALSE(Stat("s").sealed());
}

}  // namespace
}  // namespace routing_replay::testing
