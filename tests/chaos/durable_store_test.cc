// A server with a store that survives it is killed at random points under load. Every append that it acknowledged is
// there afterwards, bit for bit; what it did not acknowledge is there wholly, up to the end of an append, or not at
// all.
//
// RR_CRASH_ROUNDS: how many servers are killed; 10 if it is not set.
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/chaos/crash_load.h"
#include "tests/support/server_process.h"

namespace routing_replay::testing {
namespace {

constexpr int kWriters = 4;

TEST(DurableStoreTest, WhatWasAcknowledgedSurvives) {
  std::string directory = ::testing::TempDir() + "/durable_store_test.XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::vector<std::string> flags = {"--store", absl::StrCat("rocksdb:", directory), "--sweep-interval", "50ms"};
  std::mt19937_64 random(7);
  for (int round = 0; round < CrashRounds(10) && !::testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    std::vector<CrashWriter> writers;
    for (int i = 0; i < kWriters; ++i) writers.emplace_back(i, random());
    ASSERT_OK_AND_ASSIGN(ServerProcess server, StartServerProcess(RR_SERVER, flags));
    std::vector<std::thread> threads;
    for (CrashWriter& writer : writers) threads.emplace_back([&] { writer.Write(server.endpoint); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100 + random() % 700));
    server.process->Signal(SIGKILL);
    for (std::thread& thread : threads) thread.join();
    ASSERT_OK(server.process->Wait(std::chrono::seconds(10)));

    ASSERT_OK_AND_ASSIGN(server, StartServerProcess(RR_SERVER, flags));
    ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect({.endpoint = server.endpoint}));
    ASSERT_OK_AND_ASSIGN(const auto run, client->OpenRun("crash", CrashGeometry()));
    for (const CrashWriter& writer : writers) {
      for (const auto& [sample, known] : writer.samples()) ExpectNothingLost(*run, sample, known);
    }
    ASSERT_OK(run->Drop());
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace routing_replay::testing
