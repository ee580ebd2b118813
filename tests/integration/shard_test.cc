// Several independent memory servers used as one: answers must equal those of a single server, and when one dies, the
// samples on the others must remain.
#include <signal.h>

#include <algorithm>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/rrctl/rows.h"
#include "client/shard/members.h"
#include "tests/integration/chaos_routes.h"
#include "tests/integration/fixture.h"
#include "tests/integration/shard_servers.h"
#include "tests/support/server_process.h"

namespace routing_replay::testing {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::chrono::seconds kLong(60);

// Returns as text the parts of a sample state that must be equal on one server and on several.
std::string Comparable(const SampleState& s) {
  std::string text = absl::StrCat(s.sample, " ", BareHandle(s.handle), " group ", s.group, " rows ", s.committed_rows,
                                  " revision ", s.revision, " tokens ", s.num_tokens.value_or(-1), " unrecorded ");
  for (const RowRange range : s.unrecorded) absl::StrAppend(&text, ToString(range));
  for (const WeightSpan& span : s.weights) absl::StrAppend(&text, " ", ToString(span.rows), " of ", span.version);
  return text;
}

std::string Comparable(const absl::StatusOr<SampleState>& state) {
  if (state.ok()) return Comparable(*state);
  const auto detail = GetErrorDetail(state.status());
  return absl::StrCat(absl::StatusCodeToString(state.status().code()), " ",
                      ReasonName(detail ? detail->reason : Reason::kUnspecified));
}

std::vector<std::string> Comparable(const std::vector<SampleState>& states) {
  std::vector<std::string> texts;
  for (const SampleState& state : states) texts.push_back(Comparable(state));
  return texts;
}

// Makes the same calls on a run on one server and on a run on several; the answers must be the same.
class SameTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  SameTest() {
    single_ = *single_client_->OpenRun("same", kGeometry);
    sharded_ = *sharded_client_->OpenRun("same", kGeometry);
    single_appender_ = single_->NewAppender();
    sharded_appender_ = sharded_->NewAppender();
  }

  std::string AnySample() { return names_.empty() ? "nobody" : names_[random_() % names_.size()]; }

  // Makes one append to both runs, by Put or the appender.
  void Append(AppendOptions options, int64_t rows, bool put) {
    options.row_start = options.row_start + options.prefix_rows;
    options.group = static_cast<int64_t>(random_() % 4);
    options.weight_version = static_cast<int64_t>(random_() % 3);
    options.seal = random_() % 4 == 0;
    const RandomRoutes routes = MakeRandomRoutes(kGeometry, rows, random_());
    const std::vector<int32_t> tensor = routes.Tensor({0, rows});
    const auto send = [&](routing_replay::Run& run, Appender& appender) {
      if (put) return run.Put(options, Int32Tensor(kGeometry, rows), AsBytes(tensor)).status().code();
      EXPECT_OK(appender.Append(options, Int32Tensor(kGeometry, rows), AsBytes(tensor)));
      return appender.Flush(kLong).code();
    };
    EXPECT_EQ(send(*single_, *single_appender_), send(*sharded_, *sharded_appender_));
  }

  void Write() {
    const uint64_t kind = random_() % 10;
    const auto rows = static_cast<int64_t>(1 + random_() % 600);
    if (kind < 4 || names_.empty()) {
      names_.push_back(absl::StrCat("sample/", names_.size()));
      return Append({.sample = names_.back()}, rows, random_() % 2 == 0);
    }
    const std::string name = AnySample();
    const auto state = single_->Stat(name);
    if (kind < 6) {
      if (!state.ok()) return;
      const int64_t from = std::max<int64_t>(1, state->committed_rows - static_cast<int64_t>(random_() % 3) + 1);
      return Append({.sample = name, .row_start = from, .revision = state->revision}, rows, random_() % 2 == 0);
    }
    if (kind < 9) {
      if (!state.ok() || state->committed_rows == 0) return;
      names_.push_back(absl::StrCat(name.substr(0, name.find(':')), ":fork/", names_.size()));
      return Append({.sample = names_.back(),
                     .prefix_sample = name,
                     .prefix_rows = static_cast<int64_t>(1 + random_() % state->committed_rows),
                     .prefix_revision = state->revision},
                    rows, random_() % 2 == 0);
    }
    Control(name, state.ok() ? state->committed_rows : 0, state.ok() ? state->revision : 0);
  }

  void Control(const std::string& name, int64_t rows, int64_t revision) {
    const uint64_t kind = random_() % 4;
    const auto call = [&](routing_replay::Run& run) -> std::string {
      if (kind == 0) return Comparable(run.Truncate(name, Producer::kRollout, rows / 2, revision));
      if (kind == 1) {
        const auto sealed = run.PutUnrecorded({.sample = name, .revision = revision, .seal_num_tokens = rows + 1}, 0);
        return absl::StrCat(absl::StatusCodeToString(sealed.status().code()),
                            sealed.ok() && sealed->sealed ? " sealed" : "");
      }
      const std::vector<std::string> some = {name, "nobody"};
      const auto released = run.Release(some);
      return absl::StrCat(released.status().ToString(), released.ok() ? released->samples : -1);
    };
    EXPECT_EQ(call(*single_), call(*sharded_)) << name;
  }

  ReadRequest AnyRead() {
    ReadRequest request;
    for (uint64_t i = random_() % 12; i > 0; --i) {
      const std::string name = random_() % 10 == 0 ? "nobody" : AnySample();
      SampleRead& read = request.samples.emplace_back();
      if (random_() % 2 == 0) {
        read.sample = name;
      } else {
        read.handle = sharded_->Handle(name);
      }
      if (random_() % 3 != 0) continue;
      const auto begin = static_cast<int64_t>(random_() % 300);
      read.rows = {{begin, begin + 1 + static_cast<int64_t>(random_() % 300)}};
    }
    if (random_() % 2 == 0) request.layers = {1, 4};
    request.max_message_bytes = 64 << 10;
    return request;
  }

  void ExpectSameRead(routing_replay::Run& sharded) {
    const ReadRequest request = AnyRead();
    ReadRequest of_one = request;
    for (SampleRead& read : of_one.samples) read.handle = BareHandle(read.handle);
    ASSERT_OK_AND_ASSIGN(const auto want, single_->ReadRows(of_one, kLong));
    ASSERT_OK_AND_ASSIGN(const auto got, sharded.ReadRows(request, kLong));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].record.index, static_cast<int32_t>(i));
      EXPECT_EQ(got[i].record.status, want[i].record.status) << got[i].record.message;
      EXPECT_EQ(got[i].record.committed_rows, want[i].record.committed_rows);
      EXPECT_EQ(got[i].record.num_tokens, want[i].record.num_tokens);
      EXPECT_EQ(got[i].rows, want[i].rows);
      EXPECT_EQ(got[i].layers, want[i].layers) << i;
    }
  }

  void ExpectSameAnswers(routing_replay::Run& sharded) {
    for (int i = 0; i < 4; ++i) ExpectSameRead(sharded);
    std::optional<std::pair<int64_t, int64_t>> groups;
    if (random_() % 2 == 0) groups = {1, 3};
    ASSERT_OK_AND_ASSIGN(const auto want, single_->List(groups));
    ASSERT_OK_AND_ASSIGN(const auto got, sharded.List(groups));
    EXPECT_EQ(Comparable(got), Comparable(want));
    const std::vector<std::string> some = {AnySample(), "nobody", AnySample(), AnySample()};
    ASSERT_OK_AND_ASSIGN(const auto want_states, single_->StatMany(some));
    ASSERT_OK_AND_ASSIGN(const auto states, sharded.StatMany(some));
    EXPECT_EQ(Comparable(states), Comparable(want_states));
    EXPECT_EQ(Comparable(sharded.Stat(some[0])), Comparable(single_->Stat(some[0])));
  }

  static inline const Geometry kGeometry = ChaosGeometry();
  std::mt19937_64 random_{GetParam()};
  Servers one_{1};
  Servers several_{5};
  std::unique_ptr<Client> single_client_ = ConnectTo(one_.endpoints[0]);
  std::unique_ptr<Client> sharded_client_ = ConnectTo(several_.endpoint());
  RunHandle single_, sharded_;
  std::unique_ptr<Appender> single_appender_, sharded_appender_;
  std::vector<std::string> names_;
};

TEST_P(SameTest, AsOneServer) {
  for (int round = 0; round < 6; ++round) {
    for (int i = 0; i < 15; ++i) Write();
    ExpectSameAnswers(*sharded_);
    // A client that has created none of the samples must get the same answers.
    const auto client = ConnectTo(several_.endpoint());
    ASSERT_OK_AND_ASSIGN(const auto run, client->JoinRun("same"));
    ExpectSameAnswers(*run);
    if (HasFailure()) return;
  }
  const AppenderMetrics want = single_appender_->metrics(), got = sharded_appender_->metrics();
  EXPECT_EQ(got.appends, want.appends);
  EXPECT_EQ(got.acknowledged, want.acknowledged);
  EXPECT_EQ(got.rows, want.rows);
  ASSERT_OK_AND_ASSIGN(const auto want_released, single_->ReleaseGroups(0, 2));
  ASSERT_OK_AND_ASSIGN(const auto released, sharded_->ReleaseGroups(0, 2));
  EXPECT_EQ(released.samples, want_released.samples);
  ASSERT_OK_AND_ASSIGN(const auto want_resumed, single_client_->OpenRun("same", kGeometry, {}, 3));
  ASSERT_OK_AND_ASSIGN(const auto resumed, sharded_client_->OpenRun("same", kGeometry, {}, 3));
  EXPECT_EQ(resumed->dropped().samples, want_resumed->dropped().samples);
  ASSERT_OK_AND_ASSIGN(const auto want_runs, single_client_->ListRuns());
  ASSERT_OK_AND_ASSIGN(const auto runs, sharded_client_->ListRuns());
  ASSERT_EQ(runs.size(), want_runs.size());
  EXPECT_EQ(runs[0].samples, want_runs[0].samples);
  EXPECT_EQ(runs[0].committed_rows, want_runs[0].committed_rows);
  ASSERT_OK_AND_ASSIGN(const auto want_dropped, single_->Drop());
  ASSERT_OK_AND_ASSIGN(const auto dropped, sharded_->Drop());
  EXPECT_EQ(dropped.samples, want_dropped.samples);
  EXPECT_THAT(sharded_client_->JoinRun("same"), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
}

INSTANTIATE_TEST_SUITE_P(Seeds, SameTest, ::testing::Values(1, 2, 3));

TEST(ShardTest, EveryClientMustStateTheSameServers) {
  Servers servers(3);
  const auto client = ConnectTo(servers.endpoint());
  ASSERT_OK_AND_ASSIGN(const auto run, client->OpenRun("run", ChaosGeometry(), {.block_rows = 64}));
  EXPECT_NE(run->settings().shard_fingerprint, 0u);
  std::reverse(servers.endpoints.begin(), servers.endpoints.end());
  const auto same = ConnectTo(servers.endpoint());
  EXPECT_OK(same->OpenRun("run", ChaosGeometry()));
  EXPECT_OK(same->JoinRun("run"));
  EXPECT_OK(ConnectTo(servers.endpoints[0])->JoinRun("run"));
  EXPECT_THAT(ConnectTo(servers.endpoints[0])->OpenRun("run", ChaosGeometry()),
              Fails(absl::StatusCode::kFailedPrecondition, Reason::kGeometryMismatch));
  servers.endpoints.pop_back();
  const auto fewer = ConnectTo(servers.endpoint());
  for (const absl::Status& status : {fewer->OpenRun("run", ChaosGeometry()).status(), fewer->JoinRun("run").status()}) {
    EXPECT_THAT(status, Fails(absl::StatusCode::kFailedPrecondition, Reason::kGeometryMismatch));
    EXPECT_THAT(std::string(status.message()),
                ::testing::HasSubstr(absl::StrCat(absl::Hex(run->settings().shard_fingerprint, absl::kZeroPad16))));
  }
  EXPECT_EQ(ConnectTo(servers.endpoints[0])->ListRuns()->front().settings.block_rows, 64);
}

TEST(ShardTest, AForkSharesTheBytesOfItsParent) {
  Servers servers(4);
  const auto client = ConnectTo(servers.endpoint());
  ASSERT_OK_AND_ASSIGN(const auto run, client->OpenRun("fork", ChaosGeometry()));
  const RandomRoutes routes = MakeRandomRoutes(ChaosGeometry(), 1024, 1);
  ASSERT_OK(PutRows(*run, routes, {0, 1024}, {.sample = "parent"}));
  ASSERT_OK_AND_ASSIGN(const ServerSummary before, client->GetServerInfo());
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK(PutRows(*run, routes, {1024, 1024},
                      {.sample = absl::StrCat("parent:", i), .prefix_sample = "parent", .prefix_rows = 1024}));
  }
  ASSERT_OK_AND_ASSIGN(const ServerSummary after, client->GetServerInfo());
  EXPECT_EQ(after.samples, 21);
  EXPECT_LT(after.stored_bytes - before.stored_bytes, before.stored_bytes);
  // A fork whose id leads to another server than its parent's cannot share rows with it, so it is rejected.
  int i = 0;
  const ShardMembers members = *ShardMembers::Parse(servers.endpoint());
  while (members.PlaceOf(absl::StrCat("fork", i)) == members.PlaceOf("parent")) ++i;
  const NewAppend elsewhere{
      .options = {.sample = absl::StrCat("fork", i), .prefix_sample = "parent", .prefix_rows = 1024}};
  const auto rejecting = run->NewAppender();
  QueuedAppends queued;
  for (const absl::Status& rejected :
       {run->PutUnrecorded(elsewhere.options, 0).status(), rejecting->AppendMany({&elsewhere, 1}, queued)}) {
    EXPECT_THAT(rejected, Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
    EXPECT_THAT(std::string(rejected.message()), ::testing::HasSubstr("begin the fork's id with \"parent:\""));
  }
  // Another client continues a fork that it knows only by name.
  const auto other = ConnectTo(servers.endpoint());
  ASSERT_OK_AND_ASSIGN(const auto joined, other->JoinRun("fork"));
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK(joined->PutUnrecorded({.sample = absl::StrCat("parent:", i), .row_start = 1024, .seal = true}, 0));
  }
  for (int i = 0; i < 20; ++i) ExpectRows(*joined, absl::StrCat("parent:", i), routes, {{0, 1024}});
}

TEST(ShardTest, ABareHandleIsRejectedWithAHint) {
  Servers servers(2);
  const auto client = ConnectTo(servers.endpoint());
  ASSERT_OK_AND_ASSIGN(const auto run, client->OpenRun("run", ChaosGeometry()));
  const RandomRoutes routes = MakeRandomRoutes(ChaosGeometry(), 10, 1);
  ASSERT_OK(PutRows(*run, routes, {0, 10}, {.sample = "s"}));
  ReadRequest request;
  request.samples = {{.handle = SampleHandle("s")}};
  const ReleaseOptions bare{.handles = {SampleHandle("s")}};
  for (const absl::Status& rejected : {run->ReadRows(request, kLong).status(), run->Release({}, bare).status()}) {
    EXPECT_THAT(rejected, Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
    EXPECT_THAT(std::string(rejected.message()), ::testing::HasSubstr("run.handle(id)"));
  }
  EXPECT_EQ(run->Stat("s")->handle, run->Handle("s"));
  EXPECT_EQ(run->Release({}, {.handles = {0, run->Handle("s")}})->samples, 1);
}

TEST(ShardTest, AStepGoesOnWithoutTheServerThatIsKilled) {
  constexpr size_t kServers = 8;
  constexpr int kSamples = 160;
  constexpr int64_t kRows = 6000;
  std::vector<ServerProcess> servers;
  std::vector<std::string> endpoints;
  for (size_t i = 0; i < kServers; ++i) {
    ASSERT_OK_AND_ASSIGN(ServerProcess server, StartServerProcess(RR_SERVER, {}));
    endpoints.push_back(server.endpoint);
    servers.push_back(std::move(server));
  }
  const std::string endpoint = absl::StrCat("shard:", absl::StrJoin(endpoints, ","));
  const auto client = ConnectTo(endpoint);
  ASSERT_OK_AND_ASSIGN(const auto run, client->OpenRun("step", ChaosGeometry()));
  std::vector<RandomRoutes> routes;  // The rows of sample i are routes[i % 8].
  for (int i = 0; i < 8; ++i) routes.push_back(MakeRandomRoutes(ChaosGeometry(), kRows, i));
  ReadRequest request;
  {
    const auto appender = run->NewAppender();
    for (int i = 0; i < kSamples; ++i) {
      const std::string name = absl::StrCat("step1/", i);
      const std::vector<int32_t> tensor = routes[i % 8].Tensor({0, kRows});
      ASSERT_OK(appender->Append({.sample = name, .seal = true}, Int32Tensor(ChaosGeometry(), kRows), AsBytes(tensor)));
      request.samples.push_back({.handle = run->Handle(name)});
    }
    ASSERT_OK(appender->Flush(kLong));
  }
  // Asks each server by itself which samples it holds.
  std::vector<std::set<std::string>> held(kServers);
  for (size_t i = 0; i < kServers; ++i) {
    const auto alone = ConnectTo(endpoints[i]);
    ASSERT_OK_AND_ASSIGN(const auto part, alone->JoinRun("step"));
    ASSERT_OK_AND_ASSIGN(const auto states, part->List());
    for (const SampleState& state : states) held[i].insert(state.sample);
    EXPECT_GT(held[i].size(), 0u);
  }
  const std::set<std::string>& dead = held[3];

  // Kills the server `victim` when the read has delivered the record of sample number `at`.
  class KillingSink final : public ReadSink {
   public:
    KillingSink(Process& victim, int32_t at) : victim_(victim), at_(at) {}
    absl::Status OnRecord(const SampleRecord& record) override {
      if (record.index == at_) {
        victim_.Signal(SIGKILL);
        EXPECT_OK(victim_.Wait(std::chrono::seconds(10)));
      }
      statuses[record.index] = record.status;
      return absl::OkStatus();
    }
    absl::Status OnPiece(const ReadPiece&) override { return absl::OkStatus(); }
    std::map<int32_t, SampleStatus> statuses;

   private:
    Process& victim_;
    const int32_t at_;
  };
  request.max_message_bytes = 64 << 10;
  // The read requests every sample several times, so that the server has certainly not sent all of them when it is
  // killed.
  constexpr int kTimes = 5;
  ReadRequest step = request;
  for (int i = 1; i < kTimes; ++i) {
    step.samples.insert(step.samples.end(), request.samples.begin(), request.samples.end());
  }
  KillingSink sink(*servers[3].process, kSamples / 4);
  ASSERT_OK(run->Read(step, sink, kLong));
  int unavailable = 0;
  for (int i = 0; i < kTimes * kSamples; ++i) {
    const bool is_dead = dead.contains(absl::StrCat("step1/", i % kSamples));
    const SampleStatus status = sink.statuses.at(i);
    EXPECT_TRUE(status == SampleStatus::kOk || (is_dead && status == SampleStatus::kUnavailable)) << i;
    if (status == SampleStatus::kUnavailable) ++unavailable;
  }
  EXPECT_GT(unavailable, 0);
  // A sample of a dead server is not damaged: a report, for example, fails instead of listing it.
  const SampleState of_dead{.sample = *dead.begin(), .committed_rows = 1};
  EXPECT_EQ(client::ReadPortion(*run, of_dead, {0, 1}, {}).status().code(), absl::StatusCode::kUnavailable);

  // For a new client, too, the samples on the other servers are exact and accept new rows.
  const auto late = ConnectTo(endpoint);
  ASSERT_OK_AND_ASSIGN(const auto joined, late->JoinRun("step"));
  for (const RunHandle& reader : {run, joined}) {
    ASSERT_OK_AND_ASSIGN(const auto read, reader->ReadRows(request, kLong));
    for (int i = 0; i < kSamples; ++i) {
      if (dead.contains(absl::StrCat("step1/", i))) {
        EXPECT_EQ(read[i].record.status, SampleStatus::kUnavailable);
        continue;
      }
      ASSERT_EQ(read[i].record.status, SampleStatus::kOk) << read[i].record.message;
      EXPECT_EQ(read[i].layers, routes[i % 8].layers);
    }
  }
  const auto listed = joined->List();
  EXPECT_EQ(listed.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(listed.status().message()), ::testing::HasSubstr(endpoints[3]));
  ASSERT_OK_AND_ASSIGN(const ReleaseOutcome released, joined->ReleaseGroups(0, 1));
  EXPECT_EQ(released.samples, kSamples - static_cast<int64_t>(dead.size()));
}

}  // namespace
}  // namespace routing_replay::testing
