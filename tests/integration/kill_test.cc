// Kills a worker during an append and the server during a read, and sends appends of an earlier attempt.
#include <signal.h>

#include <filesystem>
#include <thread>

#include "tests/integration/chaos_routes.h"
#include "tests/integration/fixture.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/server_process.h"

namespace routing_replay::testing {
namespace {

TEST(KillTest, WorkerKilledAndStartedAgainEndsWithTheExactRows) {
  constexpr int64_t kRows = 20000;
  ASSERT_OK_AND_ASSIGN(const ServerProcess server, StartServerProcess(RR_SERVER, {}));
  ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect({.endpoint = server.endpoint}));
  ASSERT_OK_AND_ASSIGN(const auto run, client->OpenRun("kill", ChaosGeometry()));
  std::mt19937_64 random(1);
  int killed = 0;
  int64_t committed = 0;
  int status = -1;
  for (int life = 0; life < 60 && status != 0; ++life) {
    ASSERT_OK_AND_ASSIGN(const auto worker,
                         Process::Start({RR_APPEND_WORKER, server.endpoint, "kill", "s", absl::StrCat(kRows), "5"}));
    // Each of the first 12 workers is killed after it has committed some rows. Together they commit about a quarter of
    // the sample.
    committed += 40 + static_cast<int64_t>(random() % 400);
    auto ended = worker->Wait(std::chrono::milliseconds(1));
    const auto killed_by = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (!ended.ok() && std::chrono::steady_clock::now() < killed_by) {
      const auto state = run->Stat("s");
      if (life < 12 && state.ok() && state->committed_rows >= committed) break;
      ended = worker->Wait(std::chrono::milliseconds(1));
    }
    if (ended.ok()) {
      status = *ended;
    } else {
      worker->Signal(SIGKILL);
      ASSERT_OK(worker->Wait(std::chrono::seconds(10)));
      ++killed;
    }
  }
  EXPECT_EQ(status, 0);
  EXPECT_GT(killed, 0);
  ExpectRows(*run, "s", MakeRandomRoutes(ChaosGeometry(), kRows, 5), {{0, kRows}});
  ASSERT_OK_AND_ASSIGN(const SampleState state, run->Stat("s"));
  EXPECT_EQ(state.revision, 0);
  EXPECT_EQ(state.num_tokens, kRows + 1);
}

TEST(KillTest, ReadersFailInTimeWhenTheServerDies) {
  ASSERT_OK_AND_ASSIGN(ServerProcess server, StartServerProcess(RR_SERVER, {}));
  ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect({.endpoint = server.endpoint}));
  ASSERT_OK_AND_ASSIGN(const auto run, client->OpenRun("kill", ChaosGeometry()));
  ASSERT_OK(PutRows(*run, MakeRandomRoutes(ChaosGeometry(), 10, 1), {0, 10}, {.sample = "a"}));
  absl::Status status;
  const auto begin = std::chrono::steady_clock::now();
  std::thread reader(
      [&] { status = run->ReadRows({.samples = {{.sample = "a"}}, .wait = true}, std::chrono::seconds(4)).status(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  server.process->Signal(SIGKILL);
  reader.join();
  EXPECT_TRUE(status.code() == absl::StatusCode::kUnavailable || status.code() == absl::StatusCode::kDeadlineExceeded)
      << status;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(9));
  // A read that starts after the kill fails as well, within its deadline.
  status = run->ReadRows({.samples = {{.sample = "a"}}}, std::chrono::seconds(2)).status();
  EXPECT_TRUE(status.code() == absl::StatusCode::kUnavailable || status.code() == absl::StatusCode::kDeadlineExceeded)
      << status;
}

TEST(KillTest, AppenderGoesOnWithANewServer) {
  // The new server's memory store is empty: appends that were not acknowledged must be stored completely, and a gap
  // must stay an error. The link that the appender uses leads to the new server only after the run is open there;
  // otherwise the server would report that the run does not exist.
  const ScratchDirectory scratch;
  const std::string& directory = scratch.path();
  const std::string link = directory + "/server";
  const auto start = [&](const std::string& socket) {
    return StartServerProcess(RR_SERVER, {"--listen", absl::StrCat("unix:", socket)});
  };
  ASSERT_OK_AND_ASSIGN(ServerProcess server, start(directory + "/old"));
  std::filesystem::create_symlink(directory + "/old", link);
  ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect({.endpoint = absl::StrCat("unix:", link)}));
  ASSERT_OK_AND_ASSIGN(const auto run, client->OpenRun("kill", ChaosGeometry()));
  const RandomRoutes routes = MakeRandomRoutes(ChaosGeometry(), 100, 1);
  const auto appender = run->NewAppender();
  const TensorDescription description = Int32Tensor(ChaosGeometry(), 50);
  ASSERT_OK(appender->Append({.sample = "old"}, description, AsBytes(routes.Tensor({0, 50}))));
  ASSERT_OK(appender->Flush(kCallTimeout));
  server.process->Signal(SIGKILL);
  ASSERT_OK(server.process->Wait(std::chrono::seconds(10)));
  ASSERT_OK(appender->Append({.sample = "old", .row_start = 50}, description, AsBytes(routes.Tensor({50, 100}))));
  ASSERT_OK(appender->Append({.sample = "new"}, description, AsBytes(routes.Tensor({0, 50}))));
  ASSERT_OK_AND_ASSIGN(server, start(directory + "/new"));
  ASSERT_OK_AND_ASSIGN(const auto other, Client::Connect({.endpoint = server.endpoint}));
  ASSERT_OK_AND_ASSIGN(const auto run_again, other->OpenRun("kill", ChaosGeometry()));
  std::filesystem::remove(link);
  std::filesystem::create_symlink(directory + "/new", link);
  EXPECT_FALSE(appender->Flush(kCallTimeout).ok());
  EXPECT_EQ(appender->metrics().failed, 1);
  RandomRoutes first_half{.rows = 50};
  for (int32_t i = 0; i < 8; ++i) first_half.layers.push_back(routes.Slice(i, {{0, 50}}));
  ExpectRows(*run_again, "new", first_half, {{0, 50}});
  EXPECT_THAT(run_again->Stat("old"), Fails(absl::StatusCode::kNotFound, Reason::kNoSample));
}

class LifeTest : public ServerTest {};

TEST_F(LifeTest, AppendFromBeforeATruncateNeverLands) {
  StartServer();
  const Geometry geometry = ChaosGeometry();
  const auto run = OpenRun("life", geometry);
  const RandomRoutes old_life = MakeRandomRoutes(geometry, 100, 1), new_life = MakeRandomRoutes(geometry, 100, 2);
  ASSERT_OK(PutRows(*run, old_life, {0, 60}, {.sample = "a"}));
  ASSERT_OK_AND_ASSIGN(const SampleState truncated, run->Truncate("a", Producer::kRollout, 0, 0));
  EXPECT_EQ(truncated.revision, 1);
  ASSERT_OK(PutRows(*run, new_life, {0, 60}, {.sample = "a", .revision = 1}));
  // Now appends of the earlier attempt arrive late: one with the rows that would have come next, and one with all rows.
  for (const RowRange range : {RowRange{60, 100}, RowRange{0, 100}}) {
    EXPECT_THAT(PutRows(*run, old_life, range, {.sample = "a"}),
                Fails(absl::StatusCode::kFailedPrecondition, Reason::kOldRevision));
  }
  ASSERT_OK(PutRows(*run, new_life, {60, 100}, {.sample = "a", .revision = 1, .seal_num_tokens = 101}));
  ExpectRows(*run, "a", new_life, {{0, 100}});
}

}  // namespace
}  // namespace routing_replay::testing
