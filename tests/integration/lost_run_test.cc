// A server has lost a run, and the run may have been created there again. A client must never return an incomplete
// answer as complete, and a new checkpoint must keep samples that only the previous checkpoint still has.
#include <gmock/gmock.h>

#include <functional>
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

// Calls `then` when the run has been listed for the first time.
class ListedRun final : public routing_replay::Run {
 public:
  ListedRun(RunHandle run, std::function<void()> then) : run_(std::move(run)), then_(std::move(then)) {}

  const std::string& name() const override { return run_->name(); }
  const Geometry& geometry() const override { return run_->geometry(); }
  const RunSettings& settings() const override { return run_->settings(); }
  const ReleaseOutcome& dropped() const override { return run_->dropped(); }
  absl::StatusOr<std::vector<SampleState>> List(std::optional<std::pair<int64_t, int64_t>> groups,
                                                Producer producer) override {
    auto states = run_->List(groups, producer);
    if (then_) std::exchange(then_, nullptr)();
    return states;
  }
  absl::Status Read(ReadRequest request, ReadSink& sink, std::chrono::milliseconds timeout) override {
    return run_->Read(std::move(request), sink, timeout);
  }
  std::unique_ptr<Appender> NewAppender(AppenderOptions) override { return nullptr; }
  absl::StatusOr<AppendOutcome> Put(const AppendOptions&, const TensorDescription&,
                                    absl::Span<const uint8_t>) override {
    return Unused();
  }
  absl::StatusOr<AppendOutcome> PutUnrecorded(const AppendOptions&, int64_t) override { return Unused(); }
  absl::StatusOr<SampleState> Truncate(absl::string_view, Producer, int64_t, std::optional<int64_t>) override {
    return Unused();
  }
  absl::StatusOr<std::vector<SampleState>> StatMany(absl::Span<const std::string>, Producer) override {
    return Unused();
  }
  absl::StatusOr<ReleaseOutcome> Release(absl::Span<const std::string>, const ReleaseOptions&) override {
    return Unused();
  }
  absl::StatusOr<ReleaseOutcome> ReleaseGroups(int64_t, int64_t, const ReleaseOptions&) override { return Unused(); }
  absl::StatusOr<ReleaseOutcome> Drop() override { return Unused(); }

 private:
  static absl::Status Unused() { return absl::UnimplementedError("not in this test"); }

  const RunHandle run_;
  std::function<void()> then_;
};

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
  ListedRun exporting(run_, [this] { Lose(0); });
  const absl::Status exported = ExportRun(exporting, Path()).status();
  EXPECT_EQ(GetErrorDetail(exported).value_or(ErrorDetail()).reason, Reason::kNoRun) << exported;
  EXPECT_FALSE(VerifyExportedRun(Path()).ok());  // The failed export left no directory.

  ASSERT_OK_AND_ASSIGN(run_, client_->OpenRun("run", ChaosGeometry()));
  const RandomRoutes routes = MakeRandomRoutes(ChaosGeometry(), 30, 1);
  for (int i = 0; i < kSamples; ++i) ASSERT_OK(PutRows(*run_, routes, {0, 30}, {.sample = absl::StrCat("t/", i)}));
  left_ += kSamples;
  ListedRun verifying(run_, [this] { Lose(0); });
  const absl::Status verified = VerifyRun(verifying).status();
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
