// Fetches through a StepSource against those of the source behind it.
#include "routing_replay/trainer/step_source.h"

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/local_source.h"
#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using routing_replay::testing::MakeRandomRoutes;

constexpr int64_t kTokens = 40;

class StepSourceTest : public ::testing::Test {
 protected:
  StepSourceTest() {
    for (int32_t i = 0; i < 3; ++i) {
      const std::vector<int32_t> tensor = MakeRandomRoutes(geometry_, kTokens - 1, i).Tensor({0, kTokens - 1});
      EXPECT_OK(local_.Add({.sample = absl::StrCat("s", i)}, {.dtype = DType::kI32, .shape = {kTokens - 1, 2, 2}},
                           {reinterpret_cast<const uint8_t*>(tensor.data()), tensor.size() * sizeof(int32_t)}));
    }
  }

  // Of the samples s0, s1, …, of which the local source has three.
  ReplayPlan PlanOf(int32_t samples) const {
    MicroBatchLayout layout{.cu_seqlens_padded = {0}};
    for (int32_t i = 0; i < samples; ++i) {
      layout.sequences.push_back({kTokens, kTokens - 1});
      layout.cu_seqlens_padded.push_back((i + 1) * kTokens);
    }
    layout.total_rows = samples * kTokens;
    return *MakeReplayPlan(geometry_, *LayerTable::Create({.num_layers = 2}), layout, {});
  }
  static std::vector<FetchSequence> Sequences(int32_t samples) {
    std::vector<FetchSequence> sequences;
    for (int32_t i = 0; i < samples; ++i) sequences.push_back({.sample = absl::StrCat("s", i)});
    return sequences;
  }

  const Geometry geometry_ = Geometry::Uniform(2, 64, 2);
  LocalSource local_{geometry_};
  int64_t slices_read_ = 0;
  FetchOptions last_;  // With which it was read.
  std::function<void()> while_reading_ = [] {};
  StepSource source_{1 << 20, [this](const ReplayPlan& plan, absl::Span<const int32_t> slices,
                                     absl::Span<const FetchSequence> sequences, const FetchOptions& options) {
                       slices_read_ += static_cast<int64_t>(slices.size());
                       last_ = options;
                       while_reading_();
                       return local_.Fetch(plan, slices, sequences, options);
                     }};
};

TEST_F(StepSourceTest, ASliceIsReadOnceInAStep) {
  for (int32_t samples : {2, 3, 1, 3}) {
    const ReplayPlan plan = PlanOf(samples);
    ASSERT_OK_AND_ASSIGN(const StagedRows expected, local_.Fetch(plan, Sequences(samples), {}));
    ASSERT_OK_AND_ASSIGN(const StagedRows staged, source_.Fetch(plan, Sequences(samples), {}));
    EXPECT_EQ(staged.staging, expected.staging);
    EXPECT_EQ(staged.unrecorded, expected.unrecorded);
  }
  EXPECT_EQ(slices_read_, 3);
  EXPECT_EQ(source_.counters().hits, 6);
  source_.EndStep();
  EXPECT_EQ(source_.counters().bytes, 0);
  ASSERT_OK(source_.Fetch(PlanOf(1), Sequences(1), {}));
  EXPECT_EQ(slices_read_, 4);
}

TEST_F(StepSourceTest, ReadAheadWaitsForNothingAndRefusesNothing) {
  const ReplayPlan plan = PlanOf(4);  // The last one is not there.
  ASSERT_OK(source_.ReadAhead(plan, Sequences(4), {}, FetchTime::kAheadOfStep));
  EXPECT_FALSE(last_.wait);
  source_.EndStep();
  ASSERT_OK_AND_ASSIGN(const StagedRows staged, source_.Fetch(plan, Sequences(4), {.missing = MissingPolicy::kDrop}));
  EXPECT_TRUE(last_.wait);
  EXPECT_THAT(staged.dropped, ::testing::ElementsAre(3));
  EXPECT_EQ(slices_read_, 5);
  EXPECT_THAT(source_.Fetch(plan, Sequences(4), {}), Fails(absl::StatusCode::kFailedPrecondition, Reason::kNoSample));
}

TEST_F(StepSourceTest, WhatAnotherFetchReadsTooSlowlyFallsBack) {
  const ReplayPlan plan = PlanOf(1);
  while_reading_ = [&] {
    FetchOptions options{.missing = MissingPolicy::kLive, .timeout = std::chrono::milliseconds(0)};
    ASSERT_OK_AND_ASSIGN(const StagedRows live, source_.Fetch(plan, Sequences(1), options));
    EXPECT_EQ(live.fallback_sequences, 1);
    EXPECT_EQ(live.records[0].status, SampleStatus::kNotReady);
    options.missing = MissingPolicy::kStrict;
    EXPECT_EQ(source_.Fetch(plan, Sequences(1), options).status().code(), absl::StatusCode::kDeadlineExceeded);
  };
  ASSERT_OK_AND_ASSIGN(const StagedRows staged, source_.Fetch(plan, Sequences(1), {}));
  EXPECT_EQ(staged.fallback_sequences, 0);
  EXPECT_EQ(slices_read_, 1);
}

TEST_F(StepSourceTest, ARefusalIsOfTheSource) {
  const auto refused = Fails(absl::StatusCode::kInvalidArgument, Reason::kField);
  EXPECT_THAT(source_.Fetch(PlanOf(2), Sequences(1), {}), refused);
  EXPECT_THAT(source_.ReadAhead(PlanOf(1), Sequences(1), {}, FetchTime::kNow), refused);
  source_.Stop();
  EXPECT_EQ(source_.Fetch(PlanOf(1), Sequences(1), {}).status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace routing_replay::trainer
