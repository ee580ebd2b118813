// Servers over a real Redis Cluster of six are killed at random points under load, with and without one of the masters.
// What was acknowledged is compared with what is there afterwards.
//
// As long as all masters live nothing may be lost. A master that dies takes what it had acknowledged and its replica
// had not heard of; then of a sample
//  - it is, bit for bit, what it was at an earlier time, or nothing at all; but never what it was before a
//    truncation or restart that was acknowledged;
//  - nobody is given the rest: it is LOST, under a new revision, where the server that acknowledged it still lives, or
//    where the sample's entry in the index was on a master that lives and a server has looked through the run; it is
//    not committed where both died. That is not reported;
//  - what is gone whole is LOST, through any server, under a new revision, if the sample's entry in the index was on a
//    master that lives. If it was on the one that died, the sample is NOT_FOUND.
//
// Servers look through their samples by themselves, too, at their start and then every few seconds: whoever looks first
// finds a loss, raises the revision, and is the one who is told. So the servers' logs, which name each loss before the
// revision is raised, are what revisions are compared with.
//
// RR_CRASH_ROUNDS: rounds of each test; a few if it is not set.
#include <signal.h>

#include <atomic>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/redis/client/redis_cluster.h"
#include "server/store/redis/redis_keys.h"
#include "tests/chaos/crash_load.h"
#include "tests/support/redis/redis_cluster_process.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/server_process.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

using std::chrono::milliseconds;

constexpr int kWriters = 4;

// How the samples of a test ended.
struct Verdicts {
  int64_t samples = 0, exact = 0, lost = 0, untold = 0, empty = 0, forgotten = 0, gone = 0;
};

// Of a sample whose revision tells whether it is one that lost rows.
struct Judged {
  bool raised = false;
  bool must_be = false;  // A client was told of the loss, or the server that had acknowledged more still lives.
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

  ServerProcess StartServer(const std::string& log = "") {
    std::vector<std::string> flags = {"--store", cluster_->url()};
    if (!log.empty()) flags.insert(flags.end(), {"--log-level", "debug"});
    auto server = StartServerProcess(RR_SERVER, flags, log);
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
  // Lists the run, after which no loss that its index tells of is still to be found.
  static void LookThrough(const RunHandle& run);
  // Parts of the index of the run that are on this node.
  static std::set<int> PartsAt(int node);
  bool EntryWasLost(const std::string& sample) const {
    return lost_parts_.contains(RedisBucketKeys::Of(SampleHandle(sample)));
  }
  void Judge(const RunHandle& run, const std::string& sample, const CrashHistory& history, bool remembers);
  void ExpectRaisedWhereLost(const std::string& killed, const std::string& last);
  static void ExpectNotServed(const RunHandle& run, const CrashHistory& history, const SampleState& state, bool raised);

  static std::unique_ptr<RedisClusterProcess> cluster_;
  static std::unique_ptr<Client> client_;
  std::mt19937_64 random_{7};
  std::set<int> lost_parts_;  // Of the run's index: on the master that died.
  std::map<std::string, Judged> judged_;
  Verdicts verdicts_;
};

std::unique_ptr<RedisClusterProcess> RedisCrashTest::cluster_;
std::unique_ptr<Client> RedisCrashTest::client_;

// The master of the slot, most often some time after its replica has stopped hearing of it.
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

void RedisCrashTest::LookThrough(const RunHandle& run) { EXPECT_OK(run->List()); }

std::set<int> RedisCrashTest::PartsAt(int node) {
  const RedisKeys keys("rr");
  const std::string run = keys.Run("crash");
  const auto life = cluster_->node(*cluster_->MasterOf(RedisSlotOf(run))).Ask(RedisCommand({"HGET", run, "life"}));
  EXPECT_OK(life);
  std::set<int> parts;
  for (int part = 0; part < RedisBucketKeys::kBuckets; ++part) {
    const int slot = RedisSlotOf(RedisBucketKeys(keys, life->text, part).Counts());
    if (*cluster_->MasterOf(slot) == node) parts.insert(part);
  }
  return parts;
}

void RedisCrashTest::Judge(const RunHandle& run, const std::string& sample, const CrashHistory& history,
                           bool remembers) {
  const CrashState& acknowledged = history.acknowledged();
  SCOPED_TRACE(absl::StrCat(sample, " with ", acknowledged.rows(), " acknowledged rows at revision ",
                            acknowledged.revision, " and ", history.last().rows(), " at ", history.last().revision,
                            " asked for"));
  ++verdicts_.samples;
  bool told = history.told_lost;
  absl::StatusOr<SampleState> state = run->Stat(sample);
  if (absl::IsDataLoss(state.status())) {
    told = true;
    EXPECT_THAT(state, Fails(absl::StatusCode::kDataLoss, Reason::kNotCommitted));
    state = run->Stat(sample);
  }
  if (absl::IsNotFound(state.status())) {
    if (history.released || acknowledged.rows() == 0) return;
    ++verdicts_.gone;
    EXPECT_TRUE(EntryWasLost(sample)) << "its entry is left";
    return;
  }
  ASSERT_OK(state);
  CrashState nothing;
  const CrashState* left = acknowledged.rows() == 0 ? &acknowledged : &nothing;
  if (state->committed_rows > 0) {
    ASSERT_OK_AND_ASSIGN(const LayerRows layers, ReadLayers(*run, *state));
    left = history.Find(layers, acknowledged.revision);
    ASSERT_NE(left, nullptr) << state->committed_rows << " rows at revision " << state->revision << " that were "
                             << (history.Find(layers, 0) == nullptr ? "never the sample's"
                                                                    : "those of a life that was over")
                             << "; asked for were (rows@revision) " << history.Text();
    EXPECT_GE(state->revision, left->revision);
    if (state->token_check) {
      EXPECT_EQ(state->token_check, left->Check());
    }
  } else {
    ++verdicts_.empty;
    EXPECT_GT(state->revision, 0);
  }
  if (history.released) return;  // The server that released it forgot it, and the failover brought it back as it was.
  const bool whole = left == &acknowledged || left == &history.last();
  const bool raised = state->revision > left->revision;
  judged_[sample] = {.raised = raised, .must_be = told || (remembers && !whole)};
  if (raised && !told) ++verdicts_.untold;
  if (whole) {
    // What the server had acknowledged beyond it, and was asked for in vain, may be lost, and said to be.
    ++verdicts_.exact;
    return;
  }
  ++(raised ? verdicts_.lost : verdicts_.forgotten);
  EXPECT_TRUE(raised || EntryWasLost(sample)) << "its entry is left, and knows of more";
  ExpectNotServed(run, history, *state, raised);
}

// The samples that a server's log says are lost.
std::set<std::string> LossesIn(const std::string& log) {
  constexpr absl::string_view kBefore = "redis store: loss: sample ", kBehind = " of run crash: ";
  std::set<std::string> losses;
  std::ifstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find(std::string(kBefore));
    if (at == std::string::npos) continue;
    const size_t begin = at + kBefore.size();
    losses.insert(line.substr(begin, line.find(std::string(kBehind), begin) - begin));
  }
  return losses;
}

// A revision is raised where, and only where, a server has found a loss. What the server that was killed had found it
// may not have come to raise.
void RedisCrashTest::ExpectRaisedWhereLost(const std::string& killed, const std::string& last) {
  const std::set<std::string> by_killed = LossesIn(killed), by_last = LossesIn(last);
  for (const auto& [sample, judged] : judged_) {
    if (!judged.must_be && by_killed.contains(sample)) continue;
    EXPECT_EQ(judged.raised, judged.must_be || by_last.contains(sample)) << sample;
  }
  judged_.clear();
}

// Neither all rows that were acknowledged, nor a sample of the length that it was sealed with.
void RedisCrashTest::ExpectNotServed(const RunHandle& run, const CrashHistory& history, const SampleState& state,
                                     bool raised) {
  const CrashState& acknowledged = history.acknowledged();
  SampleRead asked{.sample = state.sample};
  if (acknowledged.sealed) asked.num_tokens = acknowledged.rows() + 1;
  if (!acknowledged.sealed) asked.rows = {{0, acknowledged.rows()}};
  const auto read = run->ReadRows({.samples = {asked}}, kCallTimeout);
  ASSERT_OK(read);
  const SampleStatus status = (*read)[0].record.status;
  const bool rows_are_gone = state.committed_rows < acknowledged.rows();
  // A server that had made a truncation or restart in vain looked for the rows that were left then.
  if (rows_are_gone && history.last().revision > acknowledged.revision && status == SampleStatus::kNotReady) return;
  EXPECT_EQ(status, raised && rows_are_gone ? SampleStatus::kLost : SampleStatus::kNotReady)
      << SampleStatusName(status) << ": " << (*read)[0].record.message;
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
  const int rounds = CrashRounds(5);
  int round = 0;
  for (; round < rounds && !HasFailure(); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const ScratchDirectory logs;
    const std::string killed = logs.path() + "/killed", last = logs.path() + "/last";
    const bool remembers = round % 2 == 0;
    ServerProcess server = StartServer(remembers ? last : killed);
    RunHandle run = OpenRun(server);  // Before the load: all of it is one run's.
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
    lost_parts_ = PartsAt(*cluster_->MasterOf(slot));
    const int master = KillMaster(slot);
    if (!remembers) {
      if (random_() % 2) Sleep(0, 2500);
      server_lives = false;
      server.process->Signal(SIGKILL);
    }
    ASSERT_OK(cluster_->AwaitFailover(slot, master));
    if (remembers) Sleep(0, 500);
    stop = true;
    for (std::thread& thread : threads) thread.join();
    if (!remembers) {
      server = StartServer(last);
      run = OpenRun(server);
      LookThrough(run);
    }
    for (const CrashWriter& writer : writers) {
      for (const auto& [sample, history] : writer.samples()) Judge(run, sample, history, remembers);
    }
    ExpectRaisedWhereLost(killed, last);
    ASSERT_OK(run->Drop());
    ASSERT_OK(cluster_->Heal());
  }
  std::printf(
      "%d masters killed: %ld samples, %ld exact, %ld lost and so marked, %ld of them whole; of %ld raised revisions a "
      "server itself was told first; %ld shorter (the server and the entry died, too), %ld gone whole and with their "
      "entries\n",
      rounds, static_cast<long>(verdicts_.samples), static_cast<long>(verdicts_.exact),
      static_cast<long>(verdicts_.lost), static_cast<long>(verdicts_.empty), static_cast<long>(verdicts_.untold),
      static_cast<long>(verdicts_.forgotten), static_cast<long>(verdicts_.gone));
}

}  // namespace
}  // namespace routing_replay::testing
