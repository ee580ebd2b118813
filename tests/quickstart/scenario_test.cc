#include "tests/quickstart/scenario.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>

#include "tests/support/status_matchers.h"

namespace routing_replay::quickstart {
namespace {

class ScenarioTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_OK_AND_ASSIGN(std::vector<Play> plays, MakeScenario(""));
    ASSERT_EQ(plays.size(), 1u);
    play_ = std::make_unique<const Play>(std::move(plays[0]));
  }
  static void TearDownTestSuite() { play_.reset(); }

  inline static std::unique_ptr<const Play> play_;
};

TEST_F(ScenarioTest, MeetsEveryFormInOneTurnAndInTwo) {
  ASSERT_EQ(play_->samples.size(), 32u);
  std::set<std::pair<PayloadForm, size_t>> met;
  int64_t rows = 0, two_turns = 0, lossy = 0;
  for (const SamplePlan& sample : play_->samples) {
    met.insert({sample.form, sample.turns.size()});
    two_turns += sample.turns.size() == 2;
    lossy += !sample.unrecorded.empty();
    rows += sample.rows();
    EXPECT_EQ(TotalRows(sample.turns), sample.rows());
    EXPECT_EQ(sample.turns.back().end, sample.rows());
  }
  EXPECT_EQ(met.size(), 2u * kPayloadForms);
  EXPECT_EQ(two_turns, 16);
  EXPECT_EQ(lossy, 4);
  EXPECT_GT(rows, 40000);
  EXPECT_LT(rows, 60000);
}

TEST_F(ScenarioTest, MicroBatchesHoldEachSampleOnceWithinTheLimit) {
  int64_t next = 0;
  for (const RowRange batch : play_->MicroBatches()) {
    EXPECT_EQ(batch.begin, next);
    next = batch.end;
    int64_t tokens = 0;
    for (int64_t i = batch.begin; i < batch.end; ++i) tokens += play_->samples[i].num_tokens;
    EXPECT_LE(tokens, kMicroBatchTokens);
  }
  EXPECT_EQ(next, 32);
}

TEST_F(ScenarioTest, KnowsTheTruthOfEverySample) {
  ASSERT_EQ(play_->truth.size(), play_->samples.size());
  for (size_t i = 0; i < play_->truth.size(); ++i) {
    EXPECT_EQ(play_->truth[i].routes.rows, play_->samples[i].rows());
    EXPECT_EQ(static_cast<int64_t>(play_->truth[i].tokens.size()), play_->samples[i].num_tokens);
  }
}

TEST(Scenario, NeedsAnIndexOfTraces) {
  EXPECT_EQ(MakeScenario("/nonexistent").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace routing_replay::quickstart
