// Training that goes on from a checkpoint: what it left behind, and what was kept for it.
#include <grpcpp/create_channel.h>

#include <filesystem>
#include <random>

#include "absl/strings/str_cat.h"
#include "routing_replay/checkpoint.h"
#include "routing_replay/v1/routing_replay.grpc.pb.h"
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

const ReleaseOptions kKeep{.mode = ReleaseMode::kAfterCheckpoint};
const ExportOptions kCheckpoint{.release_awaiting = true};

TEST_F(ResumeTest, ACheckpointReleasesWhatAwaitsIt) {
  for (int64_t group = 0; group < 4; ++group) Fill(absl::StrCat("s", group), group);
  Fill("s0", 0, Producer::kTrainer);
  Fill("open", 1, Producer::kRollout, false);
  ASSERT_OK_AND_ASSIGN(const ReleaseOutcome kept, run_->ReleaseGroups(0, 3, kKeep));
  EXPECT_EQ(kept.kept, 3);
  EXPECT_EQ(kept.samples, 2);  // No checkpoint takes what is not sealed, nor, with the rollout's, the trainer's.
  EXPECT_THAT(Samples(Producer::kTrainer), ElementsAre());
  ASSERT_OK_AND_ASSIGN(const auto rows, run_->ReadRows({.samples = {{.sample = "s0"}}}, kCallTimeout));
  EXPECT_EQ(rows[0].record.status, SampleStatus::kOk);
  ASSERT_OK_AND_ASSIGN(const ExportOutcome copy, ExportRun(*run_, directory_ / "copy"));
  EXPECT_EQ(copy.samples, 4);
  EXPECT_EQ(copy.released, 0);
  ASSERT_OK_AND_ASSIGN(const ExportOutcome first,
                       ExportRun(*run_, directory_ / "a", {.groups = {{0, 2}}, .release_awaiting = true}));
  EXPECT_EQ(first.released, 2);
  EXPECT_THAT(Samples(), ElementsAre("s2", "s3"));
  ASSERT_OK(ExportRun(*run_, directory_ / "a", kCheckpoint));
  EXPECT_THAT(Samples(), ElementsAre("s3"));
  // What the directory held before its sample was released is released by the next one.
  ASSERT_OK(run_->Release(std::vector<std::string>{"s3"}, kKeep));
  ASSERT_OK_AND_ASSIGN(const ExportOutcome second, ExportRun(*run_, directory_ / "a", kCheckpoint));
  EXPECT_EQ(second.written, 0);
  EXPECT_EQ(second.released, 1);
  EXPECT_THAT(Samples(), ElementsAre());
  EXPECT_EQ(second.samples, 4);
}

// The directory is the only place that has it.
TEST_F(ResumeTest, WhatWasReleasedForACheckpointStaysInIt) {
  Fill("s0", 0);
  Fill("s1", 1);
  ASSERT_OK(run_->Release(std::vector<std::string>{"s0"}, kKeep));
  ASSERT_OK(ExportRun(*run_, directory_, kCheckpoint));
  ASSERT_OK(run_->Release(std::vector<std::string>{"s1"}));
  ASSERT_OK_AND_ASSIGN(const ExportOutcome next,
                       ExportRun(*run_, directory_, {.drop_missing = true, .release_awaiting = true}));
  EXPECT_EQ(next.dropped, 1);
  EXPECT_EQ(next.samples, 1);
  ASSERT_OK_AND_ASSIGN(const ImportOutcome imported, ImportRun(*client_, directory_));
  EXPECT_EQ(imported.appended, 1);
  EXPECT_THAT(Samples(), ElementsAre("s0"));
}

// Another content came under the same id while the checkpoint was written.
TEST_F(ResumeTest, ANewLifeIsNotReleasedForItsPastOne) {
  Fill("s0", 0);
  ASSERT_OK(run_->Release(std::vector<std::string>{"s0"}, kKeep));
  ExportOptions options = kCheckpoint;
  options.on_progress = [&](const CheckpointProgress& progress) {
    if (progress.samples == 0) return;
    ASSERT_OK(run_->Truncate("s0", Producer::kRollout, 0, std::nullopt));
    const RandomRoutes routes = MakeRandomRoutes(run_->geometry(), 20, 99);
    ASSERT_OK(PutRows(*run_, routes, {0, 20}, {.sample = "s0", .revision = 1, .seal = true}));
    ASSERT_OK(run_->Release(std::vector<std::string>{"s0"}, kKeep));
  };
  ASSERT_OK_AND_ASSIGN(const ExportOutcome outcome, ExportRun(*run_, directory_, options));
  EXPECT_EQ(outcome.released, 0);
  ASSERT_OK_AND_ASSIGN(const SampleState state, run_->Stat("s0"));
  EXPECT_EQ(state.revision, 1);
  EXPECT_TRUE(state.awaits_checkpoint);
}

TEST_F(ResumeTest, ASampleOfAnotherGroupIsNotMissing) {
  Fill("s0", 0);
  ASSERT_OK(ExportRun(*run_, directory_));
  ASSERT_OK(PutRows(*run_, MakeRandomRoutes(run_->geometry(), 20, 0), {0, 20}, {.sample = "s0", .group = 9}));
  ASSERT_OK_AND_ASSIGN(const ExportOutcome other,
                       ExportRun(*run_, directory_, {.groups = {{0, 5}}, .drop_missing = true}));
  EXPECT_EQ(other.dropped, 0);
  EXPECT_EQ(other.samples, 1);
  // It comes back in its new group, and an import sets that, too.
  ASSERT_OK(PutRows(*run_, MakeRandomRoutes(run_->geometry(), 20, 0), {0, 20}, {.sample = "s0", .group = 3}));
  ASSERT_OK(ImportRun(*client_, directory_));
  ASSERT_OK_AND_ASSIGN(const SampleState state, run_->Stat("s0"));
  EXPECT_EQ(state.group, 9);
}

TEST_F(ResumeTest, RowsThatWereTakenBackLeaveTheDirectory) {
  Fill("s0", 0);
  ASSERT_OK(ExportRun(*run_, directory_));
  ASSERT_OK(run_->Truncate("s0", Producer::kRollout, 5, std::nullopt));
  ASSERT_OK_AND_ASSIGN(const ExportOutcome next, ExportRun(*run_, directory_));
  EXPECT_EQ(next.dropped, 1);
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

TEST_F(ResumeTest, ModesBelongToTheirCalls) {
  const auto stub =
      v1::RoutingReplay::NewStub(grpc::CreateChannel(server_->advertised(), grpc::InsecureChannelCredentials()));
  const auto code_of = [&](v1::ReleaseMode mode, bool for_checkpoint, int content_ids) {
    v1::ReleaseRequest request;
    request.set_run("r");
    request.add_samples("s0");
    request.set_mode(mode);
    for (int i = 0; i < content_ids; ++i) request.add_content_ids(7);
    grpc::ClientContext context;
    v1::ReleaseResponse response;
    return (for_checkpoint ? stub->ReleaseForCheckpoint(&context, request, &response)
                           : stub->Release(&context, request, &response))
        .error_code();
  };
  EXPECT_EQ(code_of(v1::RELEASE_MODE_UNSPECIFIED, false, 0), grpc::StatusCode::OK);
  EXPECT_EQ(code_of(v1::RELEASE_MODE_NOW, false, 1), grpc::StatusCode::OK);
  EXPECT_EQ(code_of(v1::RELEASE_MODE_CHECKPOINTED, true, 1), grpc::StatusCode::OK);
  EXPECT_EQ(code_of(v1::RELEASE_MODE_CHECKPOINTED, false, 0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code_of(v1::RELEASE_MODE_NOW, true, 0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code_of(v1::RELEASE_MODE_UNSPECIFIED, true, 0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code_of(static_cast<v1::ReleaseMode>(9), true, 0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code_of(v1::RELEASE_MODE_NOW, false, 2), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace routing_replay::testing
