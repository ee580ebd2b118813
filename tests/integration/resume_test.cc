// Training that goes on from a checkpoint: what it left behind, and what was kept for it.
#include <filesystem>
#include <random>

#include "absl/strings/str_cat.h"
#include "routing_replay/checkpoint.h"
#include "tests/integration/fixture.h"

namespace routing_replay::testing {
namespace {

class ResumeTest : public ServerTest {
 protected:
  void SetUp() override {
    StartServer();
    run_ = OpenRun("r", Geometry::Uniform(2, 64, 4));
  }
  ~ResumeTest() override { std::filesystem::remove_all(directory_); }

  void Fill(const std::string& sample, int64_t group, Producer producer = Producer::kRollout, bool seal = true) {
    const RandomRoutes routes = MakeRandomRoutes(run_->geometry(), 20, static_cast<uint64_t>(group));
    ASSERT_OK(PutRows(*run_, routes, {0, 20}, {.sample = sample, .producer = producer, .group = group, .seal = seal}));
  }
  std::vector<std::string> Samples(Producer producer = Producer::kRollout) {
    std::vector<std::string> names;
    for (const SampleState& state : run_->List({}, producer).value_or(std::vector<SampleState>())) {
      names.push_back(state.sample);
    }
    return names;
  }

  const std::filesystem::path directory_ =
      std::filesystem::path(::testing::TempDir()) / absl::StrCat("resume_", std::random_device()());
  RunHandle run_;
};

using ::testing::ElementsAre;

TEST_F(ResumeTest, WhatAnEarlierLifeLeftIsDropped) {
  for (int64_t group = -1; group < 6; ++group) Fill(absl::StrCat("s", group), group);
  Fill("open", 5, Producer::kRollout, false);
  Fill("s3", 3, Producer::kTrainer);
  Fill("s2", 2, Producer::kTrainer);
  EXPECT_EQ(run_->dropped().samples, 0);
  ASSERT_OK_AND_ASSIGN(const RunHandle resumed, client_->OpenRun("r", run_->geometry(), {}, 3));
  EXPECT_EQ(resumed->dropped().samples, 5);
  EXPECT_GT(resumed->dropped().bytes, 0);
  EXPECT_THAT(Samples(), ElementsAre("s-1", "s0", "s1", "s2"));
  EXPECT_THAT(Samples(Producer::kTrainer), ElementsAre("s2"));
  ASSERT_OK_AND_ASSIGN(const RunHandle again, client_->OpenRun("r", run_->geometry(), {}, 3));
  EXPECT_EQ(again->dropped().samples, 0);
  // A run that is made now has nothing to drop.
  ASSERT_OK_AND_ASSIGN(const RunHandle made, client_->OpenRun("new", run_->geometry(), {}, 0));
  EXPECT_EQ(made->dropped().samples, 0);
}

TEST_F(ResumeTest, ARefusedOpenDropsNothing) {
  Fill("s", 4);
  EXPECT_THAT(client_->OpenRun("r", Geometry::Uniform(2, 32, 4), {}, 0),
              Fails(absl::StatusCode::kFailedPrecondition, Reason::kGeometryMismatch));
  EXPECT_THAT(Samples(), ElementsAre("s"));
}

TEST_F(ResumeTest, ACheckpointReleasesWhatAwaitsIt) {
  for (int64_t group = 0; group < 4; ++group) Fill(absl::StrCat("s", group), group);
  Fill("s0", 0, Producer::kTrainer);
  Fill("open", 1, Producer::kRollout, false);
  ASSERT_OK_AND_ASSIGN(const ReleaseOutcome kept, run_->ReleaseGroups(0, 3, {.mode = ReleaseMode::kAfterCheckpoint}));
  EXPECT_EQ(kept.kept, 4);
  EXPECT_EQ(kept.samples, 1);  // No checkpoint takes what is not sealed.
  ASSERT_OK_AND_ASSIGN(const auto rows, run_->ReadRows({.samples = {{.sample = "s0"}}}, kCallTimeout));
  EXPECT_EQ(rows[0].record.status, SampleStatus::kOk);
  ASSERT_OK_AND_ASSIGN(const ExportOutcome copy, ExportRun(*run_, directory_ / "copy", {.release_awaiting = false}));
  EXPECT_EQ(copy.samples, 4);
  EXPECT_EQ(copy.released, 0);
  ASSERT_OK_AND_ASSIGN(const ExportOutcome first, ExportRun(*run_, directory_ / "a", {.groups = {{0, 2}}}));
  EXPECT_EQ(first.released, 2);
  EXPECT_THAT(Samples(), ElementsAre("s2", "s3"));
  EXPECT_THAT(Samples(Producer::kTrainer), ElementsAre("s0"));
  // What the directory held before its sample was released is released by the next one.
  ASSERT_OK(ExportRun(*run_, directory_ / "a"));
  EXPECT_THAT(Samples(), ElementsAre("s3"));
  ASSERT_OK(run_->Release(std::vector<std::string>{"s3"}, {.mode = ReleaseMode::kAfterCheckpoint}));
  ASSERT_OK_AND_ASSIGN(const ExportOutcome second, ExportRun(*run_, directory_ / "a"));
  EXPECT_EQ(second.written, 0);
  EXPECT_EQ(second.released, 1);
  EXPECT_THAT(Samples(), ElementsAre());
  EXPECT_EQ(second.samples, 4);
}

}  // namespace
}  // namespace routing_replay::testing
