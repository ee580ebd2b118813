// First write wins: order, overlap, gaps, unrecorded rows, weight versions, seals.
#include "server/store/conformance/conformance.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr auto kExists = absl::StatusCode::kAlreadyExists;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr Trajectory kPlain{};
constexpr Trajectory kRerouted{.tokens = 1, .routes = 2};  // The same tokens after a weight update.

TEST_P(StoreConformance, RowsComeBackAsTheyWent) {
  for (Codec stored : {Codec::kRaw, Codec::kPacked}) {
    for (Codec sent : {Codec::kRaw, Codec::kPacked}) {
      ReopenRun({.block_rows = kWindow, .codec = stored});
      ASSERT_OK_AND_ASSIGN(const AppendAck ack,
                           Append({.rows = {0, 100}, .unrecorded = {{0, 3}, {40, 70}}, .codec = sent}));
      EXPECT_EQ(ack.sample, "s");
      EXPECT_EQ(ack.committed_rows, 100);
      EXPECT_EQ(ack.unrecorded_rows, 33);
      EXPECT_FALSE(ack.sealed);
      EXPECT_EQ(Read("s"), ExpectedRows(geometry(), kPlain, 100, {{0, 3}, {40, 70}}));
      EXPECT_EQ(Stat("s").unrecorded, (std::vector<RowRange>{{0, 3}, {40, 70}}));
    }
  }
}

TEST_P(StoreConformance, AnAppendOfNoRowsOpensTheSample) {
  ASSERT_OK(Append({.rows = {0, 0}, .group = 7}));
  const SampleState state = Stat("s");
  EXPECT_EQ(state.committed_rows, 0);
  EXPECT_EQ(state.group, 7);
  EXPECT_EQ(state.handle, SampleHandle("s"));
  EXPECT_EQ(state.revision, 0);
  EXPECT_FALSE(state.sealed());
  EXPECT_TRUE(Read("s").empty());
}

TEST_P(StoreConformance, AnOverlapIsTrimmedAndARepeatChangesNothing) {
  Fill("s", 50);
  const SampleLook before = Look("s");
  ASSERT_OK_AND_ASSIGN(const AppendAck repeat, Append({.rows = {0, 50}}));
  EXPECT_EQ(repeat.trimmed_rows, 50);
  EXPECT_EQ(repeat.conflicting_rows, 0);
  EXPECT_EQ(repeat.unverified_rows, 0);
  EXPECT_EQ(Look("s"), before);
  ASSERT_OK_AND_ASSIGN(const AppendAck longer, Append({.rows = {20, 90}, .token_check_start = true}));
  EXPECT_EQ(longer.trimmed_rows, 30);
  EXPECT_EQ(longer.committed_rows, 90);
  EXPECT_NE(longer.content_id, repeat.content_id);
  EXPECT_EQ(Read("s"), ExpectedRows(geometry(), kPlain, 90));
}

TEST_P(StoreConformance, AReprefillUnderNewWeightsIsCountedAndNotStored) {
  Fill("s", 50);
  ASSERT_OK_AND_ASSIGN(const AppendAck ack, Append({.from = kRerouted, .rows = {0, 70}, .weight_version = 2}));
  EXPECT_EQ(ack.trimmed_rows, 50);
  EXPECT_EQ(ack.conflicting_rows, 50);
  Rows expected = ExpectedRows(geometry(), kRerouted, 70);
  for (int64_t row = 0; row < 50; ++row) expected[row] = kPlain.RowAt(geometry(), row);
  EXPECT_EQ(Read("s"), expected);
  EXPECT_EQ(Stat("s").weights, (std::vector<WeightSpan>{{{0, 50}, -1, ""}, {{50, 70}, 2, ""}}));
}

TEST_P(StoreConformance, AStrictRunRejectsConflictingRows) {
  ReopenRun({.strict = true, .block_rows = kWindow});
  Fill("s", 50);
  EXPECT_OK(Append({.rows = {10, 50}, .token_check_start = true}));
  const ErrorDetail detail =
      Rejected({.from = kRerouted, .rows = {40, 70}, .token_check_start = true}, kExists, Reason::kConflictingRows);
  EXPECT_EQ(detail.row, 40);
  EXPECT_EQ(detail.committed_rows, 50);
}

TEST_P(StoreConformance, AGapIsRejectedWithTheCommittedRows) {
  const ErrorDetail first = Rejected({.rows = {5, 10}}, kPrecondition, Reason::kGap);
  EXPECT_EQ(first.committed_rows, 0);
  EXPECT_FALSE(Exists("s"));
  Fill("s", 50);
  const ErrorDetail detail = Rejected({.rows = {60, 70}, .group = 9}, kPrecondition, Reason::kGap);
  EXPECT_EQ(detail.committed_rows, 50);
  EXPECT_EQ(Stat("s").group, 0);
}

TEST_P(StoreConformance, UnrecordedRowsAreNeverFilledLater) {
  ASSERT_OK(Append({.rows = {0, 50}, .unrecorded = {{10, 20}, {45, 50}}}));
  ASSERT_OK_AND_ASSIGN(const AppendAck late,
                       Append({.rows = {5, 60}, .unrecorded = {{12, 15}}, .token_check_start = true}));
  EXPECT_EQ(late.trimmed_rows, 45);
  EXPECT_EQ(late.late_rows, 12);
  EXPECT_EQ(late.conflicting_rows, 0);
  EXPECT_EQ(Read("s"), ExpectedRows(geometry(), kPlain, 60, {{10, 20}, {45, 50}}));
  // A row that is recorded on one side and unrecorded on the other is no conflict either.
  ASSERT_OK_AND_ASSIGN(const AppendAck blind, Append({.rows = {0, 60}, .unrecorded = {{0, 60}}}));
  EXPECT_EQ(blind.conflicting_rows, 0);
  EXPECT_EQ(blind.late_rows, 0);
}

TEST_P(StoreConformance, NeighbouringUnrecordedRangesAreOne) {
  ASSERT_OK(Append({.rows = {0, 40}, .unrecorded = {{30, 40}}}));
  ASSERT_OK(Append({.rows = {40, 80}, .unrecorded = {{40, 50}, {79, 80}}}));
  EXPECT_EQ(Stat("s").unrecorded, (std::vector<RowRange>{{30, 50}, {79, 80}}));
}

TEST_P(StoreConformance, WeightSpansFollowTheFirstWriter) {
  ASSERT_OK(Append({.rows = {0, 10}, .weight_version = 3, .weight_label = "a"}));
  ASSERT_OK(Append({.rows = {10, 20}, .weight_version = 3, .weight_label = "a"}));
  ASSERT_OK(Append({.rows = {15, 30}, .weight_version = 4, .weight_label = "a"}));
  ASSERT_OK(Append({.rows = {30, 30}, .weight_version = 9}));
  ASSERT_OK(Append({.rows = {30, 31}, .weight_version = 4, .weight_label = "b"}));
  EXPECT_EQ(Stat("s").weights, (std::vector<WeightSpan>{{{0, 20}, 3, "a"}, {{20, 30}, 4, "a"}, {{30, 31}, 4, "b"}}));
}

TEST_P(StoreConformance, ForksAndTruncationsKeepTheirWeights) {
  using List = std::vector<WeightSpan>;
  ASSERT_OK(Append({.rows = {0, 10}, .weight_version = 3, .weight_label = "a", .engine = "x"}));
  ASSERT_OK(Append({.rows = {5, 20}, .unrecorded = {{12, 14}}, .weight_version = 3, .weight_label = "a"}));
  ASSERT_OK(Append({.rows = {0, 20}, .weight_version = 5, .engine = "retry"}));
  ASSERT_OK(Append({.rows = {20, 30}, .weight_version = 4, .weight_label = "a", .engine = "y"}));
  EXPECT_EQ(Stat("s").weights, (List{{{0, 20}, 3, "a"}, {{20, 30}, 4, "a"}}));
  EXPECT_EQ(Stat("s").engine, "x");
  ASSERT_OK(Append({.sample = "child", .rows = {25, 26}, .engine = "z", .prefix = PrefixReference{"s", 25, 0}}));
  EXPECT_EQ(Stat("child").weights, (List{{{0, 20}, 3, "a"}, {{20, 25}, 4, "a"}, {{25, 26}, -1, ""}}));
  EXPECT_EQ(Stat("child").engine, "z");
  ASSERT_OK(store_->Truncate("run", Producer::kRollout, "s", 15, std::nullopt));
  EXPECT_EQ(Stat("s").weights, (List{{{0, 15}, 3, "a"}}));
}

TEST_P(StoreConformance, ProducersAreSeparate) {
  Fill("s", 20);
  const Trajectory other{.tokens = 1, .routes = 9};
  ASSERT_OK(Append({.producer = Producer::kTrainer, .from = other, .rows = {0, 15}, .seal_num_tokens = 16}));
  EXPECT_EQ(Read("s"), ExpectedRows(geometry(), kPlain, 20));
  EXPECT_EQ(Read("s", Producer::kTrainer), ExpectedRows(geometry(), other, 15));
  EXPECT_FALSE(Stat("s").sealed());
  EXPECT_EQ(Stat("s", Producer::kTrainer).num_tokens, 16);
}

TEST_P(StoreConformance, AnAppendMayCarryTheSeal) {
  ASSERT_OK_AND_ASSIGN(const AppendAck ack, Append({.rows = {0, 50}, .seal_num_tokens = 51}));
  EXPECT_TRUE(ack.sealed);
  EXPECT_EQ(Stat("s").num_tokens, 51);
  // Repeats the append, completely and in part, with and without the seal.
  EXPECT_OK(Append({.rows = {0, 50}, .seal_num_tokens = 51}));
  EXPECT_OK(Append({.rows = {10, 20}, .token_check_start = true, .seal_num_tokens = 51}));
  EXPECT_OK(Append({.rows = {50, 50}, .seal_num_tokens = 51}));
  EXPECT_OK(Append({.rows = {0, 50}}));
  ASSERT_OK_AND_ASSIGN(const AppendAck empty, Append({.sample = "empty", .rows = {0, 0}, .seal_num_tokens = 1}));
  EXPECT_TRUE(empty.sealed);
}

TEST_P(StoreConformance, ASealMustFitTheRows) {
  for (int64_t tokens : {0, 1, 50, 52}) {
    Rejected({.rows = {0, 50}, .seal_num_tokens = tokens}, kInvalid, Reason::kRowCount);
  }
  EXPECT_FALSE(Exists("s"));
  Fill("s", 50);
  Rejected({.rows = {40, 50}, .token_check_start = true, .seal_num_tokens = 41}, kInvalid, Reason::kRowCount);
}

TEST_P(StoreConformance, ASealedSampleTakesNoMoreRows) {
  ASSERT_OK(Append({.rows = {0, 50}, .seal_num_tokens = 51}));
  EXPECT_EQ(Rejected({.rows = {50, 51}}, kPrecondition, Reason::kSealed).committed_rows, 50);
  Rejected({.rows = {40, 60}, .token_check_start = true}, kPrecondition, Reason::kSealed);
  Rejected({.rows = {70, 80}}, kPrecondition, Reason::kSealed);
  Rejected({.rows = {0, 50}, .seal_num_tokens = 52}, kPrecondition, Reason::kSealed);
  Rejected({.rows = {0, 40}, .seal_num_tokens = 41}, kPrecondition, Reason::kSealed);
}

TEST_P(StoreConformance, GroupsAreSetByAnyAppend) {
  ASSERT_OK(Append({.rows = {0, 10}}));
  EXPECT_EQ(Stat("s").group, 0);
  ASSERT_OK_AND_ASSIGN(const AppendAck set, Append({.rows = {0, 10}, .group = -5}));
  EXPECT_EQ(Stat("s").group, -5);
  ASSERT_OK_AND_ASSIGN(const AppendAck kept, Append({.rows = {0, 10}}));
  EXPECT_EQ(Stat("s").group, -5);
  EXPECT_EQ(set.content_id, kept.content_id);
}

TEST_P(StoreConformance, BadAppendsAreRejectedAndOpenNothing) {
  Rejected({.sample = "a b", .rows = {0, 1}}, kInvalid, Reason::kField);
  Rejected({.rows = {0, 10}, .unrecorded = {{3, 11}}}, kInvalid, Reason::kField);
  AppendCommand short_of_rows = MakeAppend(run_, {.rows = {0, 10}});
  short_of_rows.header.rows.end = 11;
  short_of_rows.header.token_ids.clear();
  EXPECT_THAT(store_->Append(std::move(short_of_rows)), Fails(kInvalid, Reason::kRowCount));
  EXPECT_FALSE(Exists("s"));
  AppendCommand no_run = MakeAppend(run_, {.rows = {0, 10}});
  no_run.run = "other";
  EXPECT_THAT(store_->Append(std::move(no_run)), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  EXPECT_EQ(store_->GetTotals().samples, 0);
}

TEST_P(StoreConformance, BlocksOfAnotherGeometryAreRejected) {
  AppendCommand late = MakeAppend(run_, {.rows = {0, 10}});
  late.geometry = std::make_shared<Geometry>(Geometry::Uniform(3, 60, 4));
  EXPECT_THAT(store_->Append(std::move(late)), Fails(kPrecondition, Reason::kGeometryMismatch));
  // While the append was in flight, the run was created again with smaller windows.
  AppendCommand wide = MakeAppend({.geometry = run_.geometry, .options = {.block_rows = 64}}, {.rows = {0, 64}});
  EXPECT_THAT(store_->Append(std::move(wide)), Fails(kInvalid, Reason::kField));
  EXPECT_FALSE(Exists("s"));
}

TEST_P(StoreConformance, ContentIdsNameContents) {
  std::vector<uint64_t> seen;
  const auto note = [&] { seen.push_back(Stat("s").content_id); };
  ASSERT_OK(Append({.rows = {0, 0}}));
  note();
  for (RowRange rows : {RowRange{0, 5}, RowRange{5, 40}, RowRange{40, 50}}) {
    ASSERT_OK(Append({.rows = rows}));
    note();
    ASSERT_OK(Append({.rows = rows, .token_check_start = true}));
    EXPECT_EQ(Stat("s").content_id, seen.back());
  }
  ASSERT_OK(Append({.rows = {50, 55}, .unrecorded = {{50, 55}}}));
  note();
  EXPECT_OK(store_->Truncate("run", Producer::kRollout, "s", 55, 0));
  note();
  EXPECT_OK(store_->Truncate("run", Producer::kRollout, "s", 0, 1));
  note();
  const std::vector<SampleRef> refs{{.sample = "s"}};
  EXPECT_OK(store_->Release("run", std::nullopt, refs));
  ASSERT_OK(Append({.rows = {0, 0}}));
  note();
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
}

}  // namespace
}  // namespace routing_replay::testing
