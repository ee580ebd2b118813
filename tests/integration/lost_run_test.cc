// A server has lost a run, and the run may have been created there again. A client must never return an incomplete
// answer as complete, and a new checkpoint must keep samples that only the previous checkpoint still has.
#include <gmock/gmock.h>

#include <utility>

#include "client/shard/members.h"
#include "routing_replay/checkpoint.h"
#include "tests/integration/chaos_routes.h"
#include "tests/integration/fixture.h"
#include "tests/integration/shard_servers.h"
#include "tests/support/scratch_directory.h"

namespace routing_replay::testing {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

using ::testing::HasSubstr;

constexpr int kSamples = 20;

class LostRunTest : public ::testing::TestWithParam<size_t> {
 protected:
  LostRunTest() : servers_(GetParam()) {
    endpoint_ = GetParam() == 1 ? servers_.endpoints[0] : servers_.endpoint();
    client_ = ConnectTo(endpoint_);
    run_ = *client_->OpenRun("run", ChaosGeometry());
    for (int i = 0; i < kSamples; ++i) {
      const RandomRoutes routes = MakeRandomRoutes(ChaosGeometry(), 30, i);
      EXPECT_OK(PutRows(*run_, routes, {0, 30}, {.sample = absl::StrCat("s/", i), .group = i, .seal = true}));
    }
  }

  // Drops the run on one server, which has the same effect as restarting a server with a memory store.
  void Lose(size_t server) {
    ASSERT_OK_AND_ASSIGN(const auto part, ConnectTo(servers_.endpoints[server])->JoinRun("run"));
    ASSERT_OK_AND_ASSIGN(const ReleaseOutcome lost, part->Drop());
    left_ -= lost.samples;
    ASSERT_GT(lost.samples, 0);
  }

  std::filesystem::path Path() const { return std::filesystem::path(directory_.path()) / "run"; }
  absl::StatusOr<ExportOutcome> ExportNext(routing_replay::Run& run) {
    return ExportRun(run, Path() += "-next", {.previous = Path()});
  }
  size_t Exported() { return static_cast<size_t>(VerifyExportedRun(Path())->samples); }

  // Calls on the whole run must fail with an error that names the server that lost it, if there are several servers.
  void ExpectLost(routing_replay::Run& run) {
    const bool several = GetParam() > 1;
    for (const absl::Status& status : {run.List().status(), VerifyRun(run).status(), ExportNext(run).status()}) {
      EXPECT_EQ(status.code(), several ? absl::StatusCode::kDataLoss : absl::StatusCode::kNotFound) << status;
      EXPECT_EQ(GetErrorDetail(status).value_or(ErrorDetail()).reason, Reason::kNoRun) << status;
      if (!several) continue;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("server ", servers_.endpoints[0], ": the run is gone there")));
    }
  }

  Servers servers_;
  ScratchDirectory directory_;
  std::string endpoint_;
  std::unique_ptr<Client> client_;
  RunHandle run_;
  int64_t left_ = kSamples;
};

TEST_P(LostRunTest, IsNeverTakenForTheWhole) {
  ASSERT_OK(ExportRun(*run_, Path()));
  Lose(0);
  ExpectLost(*run_);
  EXPECT_EQ(Exported(), kSamples);
  if (GetParam() > 1) {
    ASSERT_OK_AND_ASSIGN(const RunHandle joined, ConnectTo(endpoint_)->JoinRun("run"));
    ExpectLost(*joined);
  }
  EXPECT_EQ(Exported(), kSamples);

  // Once the run is created there again, calls return the remaining samples.
  const auto client = ConnectTo(endpoint_);
  ASSERT_OK_AND_ASSIGN(const RunHandle again, client->OpenRun("run", ChaosGeometry()));
  for (const RunHandle& run : {run_, again}) {
    ASSERT_OK_AND_ASSIGN(const auto states, run->List());
    EXPECT_EQ(static_cast<int64_t>(states.size()), left_);
  }
  // The next checkpoint keeps the samples of the previous one.
  ASSERT_OK_AND_ASSIGN(const ExportOutcome whole, ExportNext(*again));
  EXPECT_EQ(whole.samples, kSamples);
  // An import restores these samples in the run.
  ASSERT_OK_AND_ASSIGN(const ImportOutcome restored, ImportRun(*client, Path()));
  EXPECT_EQ(restored.appended, kSamples - left_);
}

TEST_P(LostRunTest, WhatIsLostMeanwhileWasNotReleased) {
  bool lost = false;
  const auto lose = [&](const CheckpointProgress&) {
    if (!std::exchange(lost, true)) Lose(0);
  };
  const absl::Status exported = ExportRun(*run_, Path(), {.on_progress = lose}).status();
  EXPECT_EQ(GetErrorDetail(exported).value_or(ErrorDetail()).reason, Reason::kNoRun) << exported;
  EXPECT_FALSE(VerifyExportedRun(Path()).ok());  // The failed export left no directory.

  ASSERT_OK_AND_ASSIGN(run_, client_->OpenRun("run", ChaosGeometry()));
  const RandomRoutes routes = MakeRandomRoutes(ChaosGeometry(), 30, 1);
  for (int i = 0; i < kSamples; ++i) ASSERT_OK(PutRows(*run_, routes, {0, 30}, {.sample = absl::StrCat("t/", i)}));
  left_ += kSamples;
  lost = false;
  const absl::Status verified = VerifyRun(*run_, {.on_progress = lose}).status();
  EXPECT_EQ(GetErrorDetail(verified).value_or(ErrorDetail()).reason, Reason::kNoRun) << verified;
}

INSTANTIATE_TEST_SUITE_P(Servers, LostRunTest, ::testing::Values(1, 3));

TEST(LostServerTest, TheOthersAreAskedForNothingOfIts) {
  Servers servers(2);
  ASSERT_OK_AND_ASSIGN(const auto client,
                       Client::Connect({.endpoint = servers.endpoint(), .call_timeout = std::chrono::seconds(1)}));
  ASSERT_OK_AND_ASSIGN(const RunHandle run, client->OpenRun("run", ChaosGeometry()));
  const RandomRoutes routes = MakeRandomRoutes(ChaosGeometry(), 40, 1);
  const ShardMembers members = *ShardMembers::Parse(servers.endpoint());
  servers.servers[1].reset();
  for (int i = 0, tried = 0; tried < 4; ++i) {
    const std::string name = absl::StrCat("s/", i);
    if (members.endpoints()[members.PlaceOf(name)] == servers.endpoints[0]) continue;
    ++tried;
    const absl::Status put = PutRows(*run, routes, {0, 40}, {.sample = name}).status();
    const absl::Status stat = run->Stat(name).status();
    for (const absl::Status& status : {put, stat}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(servers.endpoints[1]));
    }
  }
  ASSERT_OK_AND_ASSIGN(const RunHandle alone, ConnectTo(servers.endpoints[0])->JoinRun("run"));
  EXPECT_TRUE(alone->List()->empty());
}

}  // namespace
}  // namespace routing_replay::testing
