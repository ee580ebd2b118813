// Training that resumes from a checkpoint: which samples are dropped, and which are restored.
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
  // A newly created run has nothing to drop.
  ASSERT_OK_AND_ASSIGN(const RunHandle made, client_->OpenRun("new", run_->geometry(), {}, 0));
  EXPECT_EQ(made->dropped().samples, 0);
}

TEST_F(ResumeTest, ARejectedOpenDropsNothing) {
  Fill("s", 4);
  EXPECT_THAT(client_->OpenRun("r", Geometry::Uniform(2, 32, 4), {}, 0),
              Fails(absl::StatusCode::kFailedPrecondition, Reason::kGeometryMismatch));
  EXPECT_THAT(Samples(), ElementsAre("s"));
}

// A checkpoint is an export followed by a release.
TEST_F(ResumeTest, WhatWasReleasedStaysInTheDirectory) {
  for (int64_t group = 0; group < 4; ++group) Fill(absl::StrCat("s", group), group);
  ASSERT_OK_AND_ASSIGN(const ExportOutcome first, ExportRun(*run_, directory_ / "1", {.groups = {{0, 2}}}));
  EXPECT_EQ(first.written, 2);
  ASSERT_OK_AND_ASSIGN(const ReleaseOutcome released, run_->ReleaseGroups(0, 2));
  EXPECT_EQ(released.samples, 2);
  ASSERT_OK_AND_ASSIGN(const ExportOutcome second, ExportRun(*run_, directory_ / "2", {.previous = directory_ / "1"}));
  EXPECT_EQ(second.written, 2);
  EXPECT_EQ(second.samples, 4);
  std::filesystem::remove_all(directory_ / "1");
  ASSERT_OK_AND_ASSIGN(const ImportOutcome imported, ImportRun(*client_, directory_ / "2"));
  EXPECT_EQ(imported.appended, 2);
  EXPECT_THAT(Samples(), ElementsAre("s0", "s1", "s2", "s3"));
}

TEST_F(ResumeTest, ASampleOfAnotherGroupWasNotReleased) {
  Fill("s0", 0);
  ASSERT_OK(ExportRun(*run_, directory_ / "1"));
  ASSERT_OK(PutRows(*run_, MakeRandomRoutes(run_->geometry(), 20, 0), {0, 20}, {.sample = "s0", .group = 9}));
  ASSERT_OK_AND_ASSIGN(const ExportOutcome others,
                       ExportRun(*run_, directory_ / "2", {.groups = {{0, 5}}, .previous = directory_ / "1"}));
  EXPECT_EQ(others.samples, 0);
  ASSERT_OK_AND_ASSIGN(const ExportOutcome all, ExportRun(*run_, directory_ / "3", {.previous = directory_ / "1"}));
  EXPECT_EQ(all.samples, 1);
  EXPECT_EQ(all.written, 0);
  // If the sample is created again in another group, an import restores the exported sample with its group.
  ASSERT_OK(PutRows(*run_, MakeRandomRoutes(run_->geometry(), 20, 0), {0, 20}, {.sample = "s0", .group = 3}));
  ASSERT_OK(ImportRun(*client_, directory_ / "3"));
  ASSERT_OK_AND_ASSIGN(const SampleState state, run_->Stat("s0"));
  EXPECT_EQ(state.group, 9);
}

TEST_F(ResumeTest, RowsThatWereTakenBackAreNotTakenOver) {
  Fill("s0", 0);
  ASSERT_OK(ExportRun(*run_, directory_ / "1"));
  ASSERT_OK(run_->Truncate("s0", Producer::kRollout, 5, std::nullopt));
  ASSERT_OK_AND_ASSIGN(const ExportOutcome next, ExportRun(*run_, directory_ / "2", {.previous = directory_ / "1"}));
  EXPECT_EQ(next.unsealed, 1);
  EXPECT_EQ(next.samples, 0);
}

TEST_F(ResumeTest, AnImportOfSomeGroups) {
  for (int64_t group = 0; group < 4; ++group) Fill(absl::StrCat("s", group), group);
  ASSERT_OK(ExportRun(*run_, directory_));
  ASSERT_OK(run_->Drop());
  run_ = OpenRun("r", run_->geometry());
  ASSERT_OK_AND_ASSIGN(const ImportOutcome imported, ImportRun(*client_, directory_, {.groups = {{1, 3}}}));
  EXPECT_EQ(imported.samples, 2);
  EXPECT_THAT(Samples(), ElementsAre("s1", "s2"));
}

}  // namespace
}  // namespace routing_replay::testing
