// A server with a RocksDB store is killed at random points under load, while another run is made and dropped. With
// durability `written` and `synced` nothing that was acknowledged is lost. With `memory` it may be: what is there is
// whole all the same, and has another revision.
//
// RR_CRASH_ROUNDS: how many servers are killed for each durability; a few if it is not set.
#include <signal.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/chaos/crash_load.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/server_process.h"

namespace routing_replay::testing {
namespace {

constexpr int kWriters = 4;
// So many blocks make a run take some away while it is dropped.
constexpr int kManySamples = 300;

struct Level {
  Durability durability;
  int rounds;
};

// Makes a run of its own and drops it, again and again until the server is gone.
void MakeAndDrop(const std::string& endpoint, const std::atomic<bool>& killed) {
  auto client = Client::Connect({.endpoint = endpoint, .call_timeout = std::chrono::seconds(1)});
  if (!client.ok()) return;
  const RandomRoutes routes = MakeRandomRoutes(CrashGeometry(), 1, 1);
  for (absl::Status status; status.ok();) {
    auto run = (*client)->OpenRun("dropped", CrashGeometry());
    status = run.status();
    for (int i = 0; i < kManySamples && status.ok(); ++i) {
      status = PutRows(**run, routes, {0, 1}, {.sample = absl::StrCat(i)}).status();
    }
    if (status.ok()) status = (*run)->Drop().status();
    EXPECT_TRUE(status.ok() || killed) << status;
  }
}

// Of a sample that need not have survived.
void ExpectWholeIfThere(Run& run, const std::string& sample, const Known& known) {
  SCOPED_TRACE(absl::StrCat(sample, " with ", known.acknowledged, " acknowledged rows"));
  const auto state = run.Stat(sample);
  if (!state.ok()) {
    EXPECT_EQ(state.status().code(), absl::StatusCode::kNotFound) << state.status();
    return;
  }
  EXPECT_GT(state->revision, 0);
  EXPECT_TRUE(known.ends.contains(state->committed_rows)) << state->committed_rows << " rows: a part of an append";
  ExpectRows(run, sample, known.Routes(), {{0, state->committed_rows}});
}

class DurableStoreTest : public ::testing::TestWithParam<Level> {
 protected:
  void SetUp() override {
    flags_ = {"--store", absl::StrCat("rocksdb:", directory_.path()), "--sweep-interval", "50ms"};
    flags_.push_back("--durability");
    flags_.emplace_back(DurabilityName(GetParam().durability));
  }

  // Kills a server under the load of `writers`. Before, none of their calls may fail.
  void KillUnderLoad(std::vector<CrashWriter>& writers, std::chrono::milliseconds after) {
    ASSERT_OK_AND_ASSIGN(const ServerProcess server, StartServerProcess(RR_SERVER, flags_));
    std::atomic<bool> killed{false};
    const auto go_on = [&](const absl::Status& status) {
      EXPECT_TRUE(status.ok() || killed) << status;
      return status.ok();
    };
    std::vector<std::thread> threads;
    for (CrashWriter& writer : writers) threads.emplace_back([&] { writer.WriteWhile(server.endpoint, go_on); });
    threads.emplace_back([&] { MakeAndDrop(server.endpoint, killed); });
    std::this_thread::sleep_for(after);
    killed = true;
    server.process->Signal(SIGKILL);
    for (std::thread& thread : threads) thread.join();
    ASSERT_OK(server.process->Wait(std::chrono::seconds(10)));
  }

  const ScratchDirectory directory_;
  std::vector<std::string> flags_;
};

TEST_P(DurableStoreTest, WhatWasAcknowledgedSurvives) {
  std::mt19937_64 random(7);
  int round = 0;
  size_t samples = 0;
  for (; round < CrashRounds(GetParam().rounds) && !HasFailure(); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    std::vector<CrashWriter> writers;
    for (int i = 0; i < kWriters; ++i) writers.emplace_back(i, random());
    ASSERT_NO_FATAL_FAILURE(KillUnderLoad(writers, std::chrono::milliseconds(100 + random() % 700)));
    ASSERT_OK_AND_ASSIGN(const ServerProcess server, StartServerProcess(RR_SERVER, flags_));
    ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect({.endpoint = server.endpoint}));
    ASSERT_OK_AND_ASSIGN(const auto run, client->OpenRun("crash", CrashGeometry()));
    const bool lasts = GetParam().durability != Durability::kMemory;
    for (const CrashWriter& writer : writers) {
      for (const auto& [sample, known] : writer.samples()) {
        lasts ? ExpectNothingLost(*run, sample, known) : ExpectWholeIfThere(*run, sample, known);
      }
      samples += writer.samples().size();
    }
    ASSERT_OK(run->Drop());
  }
  if (HasFailure()) return;
  std::printf("%s: %d servers killed: %zu samples, none wrong%s\n", DurabilityName(GetParam().durability), round,
              samples, GetParam().durability == Durability::kMemory ? "" : " and none lost");
}

INSTANTIATE_TEST_SUITE_P(RocksDB, DurableStoreTest,
                         ::testing::Values(Level{Durability::kMemory, 2}, Level{Durability::kWritten, 6},
                                           Level{Durability::kSynced, 2}),
                         [](const auto& info) { return std::string(DurabilityName(info.param.durability)); });

}  // namespace
}  // namespace routing_replay::testing
