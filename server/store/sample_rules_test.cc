#include "server/store/sample_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/store/conformance/conformance.h"

namespace routing_replay::server {
namespace {

using testing::Fails;

constexpr int32_t kWindow = 32;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

// The content has rows but no bytes of ids, because the rules under test do not look at bytes.
SampleContent ContentOf(int64_t rows, std::optional<int64_t> num_tokens = std::nullopt) {
  SampleContent content{TokenChecks(kWindow)};
  const std::string ids = testing::Trajectory{}.TokenIds({0, rows});
  content.tokens.Extend({{0, rows}, {reinterpret_cast<const uint8_t*>(ids.data()), ids.size()}}, 0);
  content.weights = {{{0, rows}, 3, "label"}};
  content.num_tokens = num_tokens;
  return content;
}

TEST(SampleRulesTest, WhatAnAppendDoesToAnIncarnation) {
  SampleContent content = ContentOf(10);
  content.revision = 2;
  content.restart_nonce = 7;
  const auto step = [](const SampleContent* of, int64_t revision, uint64_t nonce) {
    return CheckIncarnation(of, {.sample = "s", .revision = revision, .restart_nonce = nonce});
  };
  EXPECT_EQ(*step(nullptr, 0, 0), IncarnationStep::kOpen);
  EXPECT_EQ(*step(nullptr, 5, 1), IncarnationStep::kOpen);
  EXPECT_THAT(step(nullptr, 1, 0), Fails(kPrecondition, Reason::kOldRevision));
  EXPECT_EQ(*step(&content, 2, 0), IncarnationStep::kContinue);
  EXPECT_EQ(*step(&content, 1, 7), IncarnationStep::kContinue);  // Repeats the restart that made it.
  EXPECT_EQ(*step(&content, 2, 8), IncarnationStep::kRestart);
  EXPECT_THAT(step(&content, 1, 8), Fails(kPrecondition, Reason::kOldRevision));
  EXPECT_THAT(step(&content, 1, 0), Fails(kPrecondition, Reason::kOldRevision));
}

TEST(SampleRulesTest, AttemptsAreInAnOrder) {
  SampleContent content = ContentOf(10);
  content.revision = 3;
  content.restart_nonce = kAttempt | 5;
  const auto step = [&](uint32_t attempt, int64_t revision = 0) {
    return CheckIncarnation(&content, {.sample = "s", .revision = revision, .restart_nonce = kAttempt | attempt});
  };
  EXPECT_EQ(*step(5), IncarnationStep::kContinue);
  EXPECT_EQ(*step(6), IncarnationStep::kRestart);
  EXPECT_EQ(*step(1'000'000), IncarnationStep::kRestart);
  EXPECT_THAT(step(4), Fails(kPrecondition, Reason::kOldRevision));
  EXPECT_THAT(step(0, 3), Fails(kPrecondition, Reason::kOldRevision));
  EXPECT_EQ(GetErrorDetail(step(4).status())->field, "append.restart_nonce");
  // After a truncation the attempt continues if it states the revision; its late rows, which do not, are rejected.
  ContentIds ids;
  content = TruncatedContent(content, 5, ids);
  EXPECT_EQ(AttemptOf(content.restart_nonce), 5);
  EXPECT_THAT(step(5), Fails(kPrecondition, Reason::kOldRevision));
  EXPECT_EQ(GetErrorDetail(step(5).status())->field, "");
  EXPECT_EQ(*step(5, 4), IncarnationStep::kContinue);
  EXPECT_EQ(*step(6), IncarnationStep::kRestart);
  EXPECT_THAT(step(4), Fails(kPrecondition, Reason::kOldRevision));
  EXPECT_EQ(AttemptOf(TruncatedContent(content, 5, ids).restart_nonce), 5);
  // A sample whose nonce names no attempt is restarted by an attempt that states the sample's revision. Without the
  // revision the append is rejected.
  for (const uint64_t nonce : {uint64_t{0}, uint64_t{77}}) {
    content.restart_nonce = nonce;
    EXPECT_EQ(*step(0, 4), IncarnationStep::kRestart);
    EXPECT_THAT(step(9), Fails(kPrecondition, Reason::kOldRevision));
  }
}

TEST(SampleRulesTest, WhatIsKnownBesideTheRowsHasALimit) {
  const Geometry geometry = Geometry::Uniform(1, 4, 1);
  const RunInfo run{.run = "r", .geometry = std::make_shared<const Geometry>(geometry)};
  SampleContent content{TokenChecks(kWindow)};
  for (size_t i = 0; i < kMaxUnrecordedRanges; ++i) {
    content.unrecorded.push_back(RowRange::OfSize(2 * static_cast<int64_t>(i), 1));
  }
  const auto rows = 2 * static_cast<int64_t>(kMaxUnrecordedRanges);
  content.tokens.Extend({{0, rows}, {}}, std::nullopt);
  for (size_t i = 0; i < kMaxWeightSpans; ++i) {
    const auto row = static_cast<int64_t>(i);
    content.weights.push_back({{row, i + 1 == kMaxWeightSpans ? rows : row + 1}, row, ""});
  }
  const int64_t last = content.weights.back().version;
  const auto plan = [&](int64_t weight_version, std::vector<RowRange> unrecorded) {
    const AppendHeader header{
        .sample = "s", .rows = {rows, rows + 2}, .unrecorded = std::move(unrecorded), .weight_version = weight_version};
    return PlanAppend(run, content, header, {}).status();
  };
  EXPECT_OK(plan(last, {}));
  EXPECT_THAT(plan(last, {{rows + 1, rows + 2}}), Fails(kPrecondition, Reason::kLength));
  EXPECT_THAT(plan(last + 1, {}), Fails(kPrecondition, Reason::kLength));
  // An unrecorded range that continues the last one adds none to the list, so it is accepted. With one weight span
  // fewer, an append with another weight version is accepted, too.
  content.unrecorded.back().end = rows;
  EXPECT_OK(plan(last, {{rows, rows + 1}}));
  content.weights.erase(content.weights.begin());
  EXPECT_OK(plan(last + 1, {}));
}

TEST(SampleRulesTest, ANewIncarnationKeepsTheGroupAndCountsOn) {
  SampleContent before = ContentOf(10);
  before.revision = 2;
  before.group = 5;
  std::optional<absl::StatusOr<SampleContent>> none;
  const AppendHeader header{.sample = "s", .restart_nonce = 8, .engine = "e"};
  const auto restarted = NewIncarnation(IncarnationStep::kRestart, &before, header, kWindow, none);
  ASSERT_OK(restarted);
  EXPECT_EQ(restarted->revision, 3);
  EXPECT_EQ(restarted->group, 5);
  EXPECT_EQ(restarted->rows(), 0);
  EXPECT_EQ(restarted->restart_nonce, 8u);
  const auto opened = NewIncarnation(IncarnationStep::kOpen, nullptr, header, kWindow, none);
  ASSERT_OK(opened);
  EXPECT_EQ(opened->revision, 0);
  EXPECT_EQ(opened->engine, "e");
}

TEST(SampleRulesTest, APrefixMustFitTheParent) {
  const SampleContent parent = ContentOf(40);
  EXPECT_THAT(TakePrefix(parent, {"p", 41, 0}), Fails(kPrecondition, Reason::kNotCommitted));
  EXPECT_THAT(TakePrefix(parent, {"p", 4, 1}), Fails(kPrecondition, Reason::kOldRevision));
  std::optional<absl::StatusOr<SampleContent>> prefix = TakePrefix(parent, {"p", 33, 0});
  AppendHeader header{.sample = "s"};
  header.prefix = PrefixReference{"p", 33, 0};
  const auto incarnation = NewIncarnation(IncarnationStep::kOpen, nullptr, header, kWindow, prefix);
  ASSERT_OK(incarnation);
  EXPECT_EQ(incarnation->rows(), 33);
  EXPECT_EQ(incarnation->prefix, header.prefix);
  EXPECT_EQ(incarnation->weights[0].rows, (RowRange{0, 33}));
}

TEST(SampleRulesTest, TruncatedAndSealedContents) {
  ContentIds ids;
  SampleContent content = ContentOf(70, 71);
  content.restart_nonce = 4;
  content.content_id = ids.Next();
  EXPECT_OK(CheckTruncate(content, 70, std::nullopt));
  EXPECT_THAT(CheckTruncate(content, 71, std::nullopt), Fails(absl::StatusCode::kOutOfRange, Reason::kNotCommitted));
  EXPECT_THAT(CheckTruncate(content, -1, 0), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(CheckTruncate(content, 1, 1), Fails(kPrecondition, Reason::kOldRevision));
  const SampleContent shorter = TruncatedContent(content, 64, ids);
  EXPECT_EQ(shorter.rows(), 64);
  EXPECT_EQ(shorter.revision, 1);
  EXPECT_EQ(shorter.restart_nonce, 0u);
  EXPECT_FALSE(shorter.sealed());
  EXPECT_NE(shorter.content_id, content.content_id);
  EXPECT_EQ(shorter.tokens.Fits(64, testing::Trajectory{}.TokenCheckAt(64)), true);
  EXPECT_EQ(shorter.tokens.Fits(64, 1), false);
  EXPECT_EQ(shorter.tokens.Fits(63, 1), std::nullopt);
  EXPECT_OK(CheckSeal(shorter, 65, 1));
  EXPECT_THAT(CheckSeal(shorter, 65, 0), Fails(kPrecondition, Reason::kOldRevision));
  const SampleContent sealed = SealedContent(shorter, 65);
  EXPECT_EQ(sealed.content_id, shorter.content_id);
  EXPECT_OK(CheckSeal(sealed, 65, 1));
  EXPECT_THAT(CheckSeal(sealed, 66, 1), Fails(kPrecondition, Reason::kSealed));
}

TEST(SampleRulesTest, ErrorsSayWhereTheSampleIs) {
  const SampleContent content = ContentOf(9);
  const absl::Status gap = MakeError(kPrecondition, "gap", {.reason = Reason::kGap});
  const std::optional<ErrorDetail> there = GetErrorDetail(WithContent(gap, "s", &content));
  EXPECT_EQ(there->sample, "s");
  EXPECT_EQ(there->committed_rows, 9);
  EXPECT_EQ(there->revision, 0);
  EXPECT_EQ(GetErrorDetail(WithContent(gap, "s", nullptr))->committed_rows, std::nullopt);
}

}  // namespace
}  // namespace routing_replay::server
