// Kills servers over a real Redis Cluster of six nodes at random points under load, with and without one of the
// masters, and compares what was acknowledged with what is stored afterwards.
//
// While all masters live nothing may be lost. A killed master loses what it had acknowledged but not yet sent to its
// replica. A sample must then be an earlier state of itself, bit for bit, or NOT_FOUND, and lost rows must be
// NOT_READY.
//
// RR_CRASH_ROUNDS: rounds of each test; a few if it is not set.
#include <signal.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/chaos/crash_load.h"
#include "tests/support/redis/redis_cluster_process.h"
#include "tests/support/server_process.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

using std::chrono::milliseconds;

constexpr int kWriters = 4;

// Counts the outcomes for the samples of a test.
struct Verdicts {
  int64_t samples = 0, exact = 0, earlier = 0, gone = 0;
};

class RedisCrashTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (NoRedisReason().empty()) cluster_ = *RedisClusterProcess::Start();
  }
  static void TearDownTestSuite() { cluster_.reset(); }

  void SetUp() override {
    if (!NoRedisReason().empty()) GTEST_SKIP() << NoRedisReason();
    ASSERT_OK(cluster_->Heal());
  }

  static ServerProcess StartServer() {
    auto server = StartServerProcess(RR_SERVER, {"--store", cluster_->url()});
    EXPECT_OK(server);
    return *std::move(server);
  }
  static RunHandle OpenRun(const ServerProcess& server) {
    client_ = *Client::Connect({.endpoint = server.endpoint, .call_timeout = kCallTimeout});
    auto run = client_->OpenRun("crash", CrashGeometry());
    EXPECT_OK(run);
    return *std::move(run);
  }
  std::vector<CrashWriter> NewWriters() {
    std::vector<CrashWriter> writers;
    for (int i = 0; i < kWriters; ++i) writers.emplace_back(i, random_());
    return writers;
  }
  milliseconds Between(int64_t low, int64_t high) {
    return milliseconds(low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low)));
  }
  void Sleep(int64_t low, int64_t high) { std::this_thread::sleep_for(Between(low, high)); }

  int KillMaster(int slot);
  void Judge(const RunHandle& run, const std::string& sample, const CrashHistory& history);

  static std::unique_ptr<RedisClusterProcess> cluster_;
  static std::unique_ptr<Client> client_;
  std::mt19937_64 random_{7};
  Verdicts verdicts_;
};

std::unique_ptr<RedisClusterProcess> RedisCrashTest::cluster_;
std::unique_ptr<Client> RedisCrashTest::client_;

// Kills the master of the slot, and returns its node. Three times in four, the replica is cut off for up to 300 ms
// first, and so lacks the last writes that the master acknowledged.
int RedisCrashTest::KillMaster(int slot) {
  const int master = *cluster_->MasterOf(slot);
  const int replica = RedisClusterProcess::PartnerOf(master);
  const bool lags = random_() % 4 != 0;
  if (lags) {
    cluster_->node(replica).Pause();
    EXPECT_OK(cluster_->node(master).Ask(RedisCommand({"CLIENT", "KILL", "TYPE", "replica"})));
    Sleep(0, 300);
  }
  cluster_->node(master).Kill();
  if (lags) cluster_->node(replica).Signal(SIGCONT);
  return master;
}

void RedisCrashTest::Judge(const RunHandle& run, const std::string& sample, const CrashHistory& history) {
  const CrashState& acknowledged = history.acknowledged();
  SCOPED_TRACE(absl::StrCat(sample, " with ", acknowledged.rows(), " acknowledged rows at revision ",
                            acknowledged.revision, " and ", history.last().rows(), " at ", history.last().revision,
                            " asked for"));
  ++verdicts_.samples;
  const absl::StatusOr<SampleState> state = run->Stat(sample);
  if (absl::IsNotFound(state.status())) {
    if (!history.released && acknowledged.rows() > 0) ++verdicts_.gone;
    return;
  }
  ASSERT_OK(state);
  EXPECT_LE(state->revision, history.last().revision);
  if (state->committed_rows == 0) return;
  ASSERT_OK_AND_ASSIGN(const LayerRows layers, ReadLayers(*run, *state));
  const CrashState* left = history.Find(layers, 0);
  ASSERT_NE(left, nullptr) << state->committed_rows << " rows at revision " << state->revision
                           << " that were never the sample's; asked for were (rows@revision) " << history.Text();
  if (state->token_check) {
    EXPECT_EQ(state->token_check, left->Check());
  }
  if (left == &acknowledged || left == &history.last()) {
    ++verdicts_.exact;
    return;
  }
  ++verdicts_.earlier;
  if (history.released || state->committed_rows >= acknowledged.rows()) return;
  const auto read = run->ReadRows({.samples = {{.sample = sample, .rows = {{0, acknowledged.rows()}}}}}, kCallTimeout);
  ASSERT_OK(read);
  // The earlier state may be one that was sealed before a truncation. Rows past a sealed sample's end are OUT_OF_RANGE,
  // and missing rows of an unsealed one are NOT_READY.
  EXPECT_EQ((*read)[0].record.status, state->sealed() ? SampleStatus::kOutOfRange : SampleStatus::kNotReady)
      << (*read)[0].record.message;
}

TEST_F(RedisCrashTest, NothingIsLostWithAServer) {
  const int rounds = CrashRounds(5);
  int64_t samples = 0;
  int round = 0;
  for (; round < rounds && !HasFailure(); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    ServerProcess server = StartServer();
    std::vector<CrashWriter> writers = NewWriters();
    std::vector<std::thread> threads;
    for (CrashWriter& writer : writers) threads.emplace_back([&] { writer.Write(server.endpoint); });
    Sleep(100, 800);
    server.process->Signal(SIGKILL);
    for (std::thread& thread : threads) thread.join();
    server = StartServer();
    const RunHandle run = OpenRun(server);
    for (const CrashWriter& writer : writers) {
      for (const auto& [sample, history] : writer.samples()) ExpectNothingLost(*run, sample, history);
      samples += static_cast<int64_t>(writer.samples().size());
    }
    ASSERT_OK(run->Drop());
  }
  std::printf("%d servers killed: %ld samples, all exact\n", round, static_cast<long>(samples));
}

TEST_F(RedisCrashTest, WhatIsLostWithAMasterIsNeverWrong) {
  const int rounds = CrashRounds(3);
  int round = 0;
  for (; round < rounds && !HasFailure(); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const bool server_dies = round % 2 == 1;
    ServerProcess server = StartServer();
    RunHandle run = OpenRun(server);  // Opened before the load starts, because all of the load uses this run.
    // If the run's own record is lost, there is nothing to compare.
    for (int node = 0; node < RedisClusterProcess::kNodes; ++node) {
      cluster_->node(node).Ask(RedisCommand({"WAIT", "1", "10000"})).IgnoreError();
    }
    std::vector<CrashWriter> writers = NewWriters();
    std::vector<std::thread> threads;
    std::atomic<bool> server_lives{true}, stop{false};
    for (CrashWriter& writer : writers) {
      threads.emplace_back([&] {
        writer.WriteWhile(server.endpoint,
                          [&](const absl::Status& last) { return !stop && (server_lives || last.ok()); });
      });
    }
    Sleep(200, 900);
    const int slot = static_cast<int>(random_() % 16384);
    const int master = KillMaster(slot);
    if (server_dies) {
      if (random_() % 2) Sleep(0, 2500);
      server_lives = false;
      server.process->Signal(SIGKILL);
    }
    ASSERT_OK(cluster_->AwaitFailover(slot, master));
    if (!server_dies) Sleep(0, 500);
    stop = true;
    for (std::thread& thread : threads) thread.join();
    if (server_dies) {
      server = StartServer();
      run = OpenRun(server);
    }
    for (const CrashWriter& writer : writers) {
      for (const auto& [sample, history] : writer.samples()) Judge(run, sample, history);
    }
    ASSERT_OK(run->Drop());
    ASSERT_OK(cluster_->Heal());
  }
  std::printf("%d masters killed: %ld samples, %ld exact, %ld as they were earlier, %ld gone\n", rounds,
              static_cast<long>(verdicts_.samples), static_cast<long>(verdicts_.exact),
              static_cast<long>(verdicts_.earlier), static_cast<long>(verdicts_.gone));
}

}  // namespace
}  // namespace routing_replay::testing
