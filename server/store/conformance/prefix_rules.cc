// A sample may open with a prefix: rows [0, n) of another sample, its parent. It is then a fork of the parent.
#include "server/store/conformance/conformance.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr auto kRollout = Producer::kRollout;
constexpr Trajectory kPlain{};
constexpr Trajectory kBranch{.tokens = 3, .routes = 3};

// Returns the rows [0, rows) of a fork: first `count` rows of kPlain, then those of kBranch.
Rows Branched(const Geometry& geometry, int64_t count, int64_t rows) {
  Rows expected = ExpectedRows(geometry, kBranch, rows);
  for (int64_t row = 0; row < count; ++row) expected[row] = kPlain.RowAt(geometry, row);
  return expected;
}

TEST_P(StoreConformance, AForkSharesThePrefix) {
  ASSERT_OK(Append({.sample = "parent", .rows = {0, 100}, .unrecorded = {{5, 8}}, .group = 4, .weight_version = 6}));
  for (int64_t n : {0, 1, 7, 31, 32, 70, 96, 100}) {
    const std::string child = absl::StrCat("child-", n);
    ASSERT_OK_AND_ASSIGN(const AppendAck ack,
                         Append({.sample = child, .rows = {n, n}, .prefix = PrefixReference{"parent", n, 0}}));
    EXPECT_EQ(ack.committed_rows, n);
    EXPECT_EQ(ack.revision, 0);
    const SampleState state = Stat(child);
    EXPECT_EQ(state.group, 0);
    EXPECT_EQ(state.unrecorded, Clip(std::vector<RowRange>{{5, 8}}, {0, n}));
    EXPECT_EQ(state.weights.size(), n == 0 ? 0u : 1u);
    EXPECT_EQ(Read(child), ExpectedRows(geometry(), kPlain, n, state.unrecorded));
    EXPECT_NE(state.content_id, Stat("parent").content_id);
    // The child knows the token check at row n only if the parent has one there: at the end of a window, or of its
    // rows.
    EXPECT_EQ(state.token_check.has_value(), n % kWindow == 0 || n == 100) << n;
  }
}

TEST_P(StoreConformance, AForkGoesOnByItself) {
  Fill("parent", 100);
  const PrefixReference prefix{"parent", 70, 0};
  ASSERT_OK(Append({.sample = "child", .from = kBranch, .rows = {70, 120}, .prefix = prefix, .codec = Codec::kPacked}));
  ASSERT_OK(Append({.sample = "parent", .rows = {100, 130}, .seal_num_tokens = 131}));
  ASSERT_OK(store_->Seal("run", kRollout, "child", 121, 0));
  EXPECT_EQ(Read("child"), Branched(geometry(), 70, 120));
  EXPECT_EQ(Read("parent"), ExpectedRows(geometry(), kPlain, 130));
}

TEST_P(StoreConformance, AForkSurvivesItsParent) {
  for (bool truncate : {false, true}) {
    ReopenRun({.block_rows = kWindow});
    Fill("parent", 100);
    ASSERT_OK(Append({.sample = "child", .rows = {70, 70}, .prefix = PrefixReference{"parent", 70, 0}}));
    if (truncate) {
      ASSERT_OK(store_->Truncate("run", kRollout, "parent", 0, std::nullopt));
      ASSERT_OK(Append({.sample = "parent", .from = kBranch, .rows = {0, 100}, .revision = 1}));
    } else {
      const std::vector<SampleRef> parent{{.sample = "parent"}};
      ASSERT_OK(store_->Release("run", std::nullopt, parent));
    }
    EXPECT_EQ(Read("child"), ExpectedRows(geometry(), kPlain, 70));
    ASSERT_OK(Append({.sample = "child", .from = kBranch, .rows = {70, 100}, .seal_num_tokens = 101}));
    EXPECT_EQ(Read("child"), Branched(geometry(), 70, 100));
  }
}

TEST_P(StoreConformance, AForkOfAForkAndItsOverlap) {
  Fill("a", 100);
  ASSERT_OK(
      Append({.sample = "b", .rows = {80, 90}, .token_check_start = true, .prefix = PrefixReference{"a", 80, 0}}));
  ASSERT_OK(Append({.sample = "c", .rows = {85, 85}, .prefix = PrefixReference{"b", 85, 0}}));
  EXPECT_EQ(Read("c"), ExpectedRows(geometry(), kPlain, 85));
  // The rows of the prefix count as committed. So an append of them is trimmed, its tokens are compared, and an append
  // that begins behind their end leaves a gap.
  ASSERT_OK_AND_ASSIGN(const AppendAck overlap,
                       Append({.sample = "d", .rows = {0, 90}, .prefix = PrefixReference{"a", 80, 0}}));
  EXPECT_EQ(overlap.trimmed_rows, 80);
  EXPECT_EQ(overlap.committed_rows, 90);
  Rejected({.sample = "e", .from = kBranch, .rows = {0, 90}, .prefix = PrefixReference{"a", 80, 0}},
           absl::StatusCode::kAlreadyExists, Reason::kOtherTokens);
  const ErrorDetail gap =
      Rejected({.sample = "e", .rows = {81, 90}, .prefix = PrefixReference{"a", 80, 0}}, kPrecondition, Reason::kGap);
  EXPECT_EQ(gap.committed_rows, 80);
  EXPECT_FALSE(Exists("e"));
}

TEST_P(StoreConformance, AStartCheckCarriesTheTokensOverAForkPoint) {
  Fill("parent", 100);
  const PrefixReference prefix{"parent", 70, 0};
  ASSERT_OK(Append({.sample = "without", .rows = {70, 80}, .prefix = prefix}));
  EXPECT_EQ(Stat("without").token_check, std::nullopt);
  ASSERT_OK(Append({.sample = "with", .rows = {70, 80}, .token_check_start = true, .prefix = prefix}));
  EXPECT_EQ(Stat("with").token_check, (TokenCheck{80, kPlain.TokenCheckAt(80)}));
}

TEST_P(StoreConformance, APrefixMustBeThere) {
  Fill("parent", 50);
  ASSERT_OK(Append({.sample = "trainer-only", .producer = Producer::kTrainer, .rows = {0, 50}}));
  Rejected({.rows = {9, 9}, .prefix = PrefixReference{"none", 9, 0}}, absl::StatusCode::kNotFound, Reason::kNoSample);
  Rejected({.rows = {9, 9}, .prefix = PrefixReference{"trainer-only", 9, 0}}, absl::StatusCode::kNotFound,
           Reason::kNoSample);
  Rejected({.rows = {51, 51}, .prefix = PrefixReference{"parent", 51, 0}}, kPrecondition, Reason::kNotCommitted);
  Rejected({.rows = {9, 9}, .prefix = PrefixReference{"parent", 9, 1}}, kPrecondition, Reason::kOldRevision);
  Rejected({.rows = {9, 9}, .prefix = PrefixReference{"s", 9, 0}}, absl::StatusCode::kInvalidArgument, Reason::kField);
  EXPECT_FALSE(Exists("s"));
}

TEST_P(StoreConformance, OpeningAgainWithTheSamePrefixIsARepeat) {
  Fill("parent", 50);
  const PrefixReference prefix{"parent", 40, 0};
  ASSERT_OK(Append({.rows = {40, 60}, .prefix = prefix}));
  const std::vector<SampleRef> parent{{.sample = "parent"}};
  ASSERT_OK(store_->Release("run", std::nullopt, parent));
  ASSERT_OK_AND_ASSIGN(const AppendAck again, Append({.rows = {40, 60}, .prefix = prefix}));
  EXPECT_EQ(again.trimmed_rows, 20);
  for (const PrefixReference& other :
       {PrefixReference{"parent", 39, 0}, PrefixReference{"parent", 40, 1}, PrefixReference{"other", 40, 0}}) {
    Rejected({.rows = {60, 60}, .prefix = other}, kPrecondition, Reason::kField);
  }
  Fill("plain", 10);
  Rejected({.sample = "plain", .rows = {10, 10}, .prefix = prefix}, kPrecondition, Reason::kField);
}

TEST_P(StoreConformance, ARestartMayOpenWithAPrefix) {
  Fill("parent", 50);
  ASSERT_OK(Append({.from = kBranch, .rows = {0, 80}, .seal_num_tokens = 81}));
  ASSERT_OK_AND_ASSIGN(
      const AppendAck ack,
      Append({.from = kBranch, .rows = {40, 45}, .restart_nonce = 9, .prefix = PrefixReference{"parent", 40, 0}}));
  EXPECT_EQ(ack.revision, 1);
  EXPECT_EQ(Read("s"), Branched(geometry(), 40, 45));
}

}  // namespace
}  // namespace routing_replay::testing
