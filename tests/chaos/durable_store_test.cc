// A server with a store that survives it is killed at random points under load. Every append that it acknowledged is
// there afterwards, bit for bit; what it did not acknowledge is there wholly, up to the end of an append, or not at
// all.
//
// RR_CRASH_ROUNDS: how many servers are killed; 10 if it is not set.
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/fixture.h"
#include "tests/support/server_process.h"

namespace routing_replay::testing {
namespace {

constexpr int kWriters = 4;
constexpr int64_t kMaxRows = 700;

Geometry CrashGeometry() { return Geometry::Uniform(6, 160, 8); }

int Rounds() {
  const char* said = getenv("RR_CRASH_ROUNDS");
  return said == nullptr ? 10 : atoi(said);
}

// What one writer knows of a sample. Its rows are those of MakeRandomRoutes(kMaxRows, seed).
struct Known {
  uint64_t seed = 0;
  int64_t acknowledged = 0;  // Rows.
  std::set<int64_t> ends;    // Of appends that may be there: the last one may not have been acknowledged.
  bool sealed = false;       // Acknowledged.
  bool released = false;     // Asked for; then anything but wrong rows is right.
};

// Writes samples of its own until the server is gone.
class Writer {
 public:
  Writer(int number, uint64_t seed) : number_(number), random_(seed) {}

  void Write(const std::string& endpoint) {
    // It is not to wait long for a server that does not come back.
    auto client = Client::Connect({.endpoint = endpoint, .call_timeout = std::chrono::seconds(2)});
    if (!client.ok()) return;
    auto run = (*client)->OpenRun("crash", CrashGeometry());
    if (!run.ok()) return;
    while (Step(**run)) {
    }
  }
  const std::map<std::string, Known>& samples() const { return samples_; }

 private:
  bool Step(Run& run) {
    if (current_.empty() || samples_[current_].sealed) {
      current_ = absl::StrCat("w", number_, "/", samples_.size());
      samples_[current_].seed = random_();
    }
    Known& known = samples_[current_];
    const int64_t left = kMaxRows - known.acknowledged;
    const int64_t rows = std::min<int64_t>(left, 1 + random_() % 150);
    const RowRange range = RowRange::OfSize(known.acknowledged, rows);
    const bool seal = range.end == kMaxRows || random_() % 8 == 0;
    AppendOptions options{.sample = current_};
    if (seal) options.seal_num_tokens = range.end + 1;
    known.ends.insert(range.end);
    const auto outcome = PutRows(run, MakeRandomRoutes(CrashGeometry(), kMaxRows, known.seed), range, options);
    if (!outcome.ok()) {
      const absl::StatusCode code = outcome.status().code();
      EXPECT_TRUE(code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kDeadlineExceeded)
          << outcome.status();
      return false;
    }
    known.acknowledged = range.end;
    known.sealed = seal;
    if (seal && random_() % 4 == 0) {
      known.released = true;
      return run.Release(std::vector<std::string>{current_}).ok();
    }
    return true;
  }

  const int number_;
  std::mt19937_64 random_;
  std::string current_;
  std::map<std::string, Known> samples_;
};

void Check(Run& run, const std::string& sample, Known known) {
  SCOPED_TRACE(absl::StrCat(sample, " with ", known.acknowledged, " acknowledged rows"));
  const auto state = run.Stat(sample);
  if (!state.ok()) {
    EXPECT_EQ(state.status().code(), absl::StatusCode::kNotFound) << state.status();
    EXPECT_TRUE(known.released || known.acknowledged == 0);
    return;
  }
  EXPECT_GE(state->committed_rows, known.acknowledged);
  EXPECT_TRUE(known.ends.contains(state->committed_rows)) << state->committed_rows << " rows: a part of an append";
  if (known.sealed) {
    EXPECT_EQ(state->num_tokens, known.acknowledged + 1);
  }
  ExpectRows(run, sample, MakeRandomRoutes(CrashGeometry(), kMaxRows, known.seed), {{0, state->committed_rows}});
}

TEST(DurableStoreTest, WhatWasAcknowledgedSurvives) {
  std::string directory = ::testing::TempDir() + "/durable_store_test.XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::vector<std::string> flags = {"--store", absl::StrCat("rocksdb:", directory), "--sweep-interval", "50ms"};
  std::mt19937_64 random(7);
  for (int round = 0; round < Rounds() && !::testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    std::vector<Writer> writers;
    for (int i = 0; i < kWriters; ++i) writers.emplace_back(i, random());
    ASSERT_OK_AND_ASSIGN(ServerProcess server, StartServerProcess(RR_SERVER, flags));
    std::vector<std::thread> threads;
    for (Writer& writer : writers) threads.emplace_back([&] { writer.Write(server.endpoint); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100 + random() % 700));
    server.process->Signal(SIGKILL);
    for (std::thread& thread : threads) thread.join();
    ASSERT_OK(server.process->Wait(std::chrono::seconds(10)));

    ASSERT_OK_AND_ASSIGN(server, StartServerProcess(RR_SERVER, flags));
    ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect({.endpoint = server.endpoint}));
    ASSERT_OK_AND_ASSIGN(const auto run, client->OpenRun("crash", CrashGeometry()));
    for (const Writer& writer : writers) {
      for (const auto& [sample, known] : writer.samples()) Check(*run, sample, known);
    }
    ASSERT_OK(run->Drop());
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace routing_replay::testing
