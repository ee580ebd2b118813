// Kills a server with a RocksDB store at random points under load, while another run is created and dropped. With
// durability `written` and `synced` nothing acknowledged may be lost. With `memory` it may be, but the remaining rows
// must be those of an earlier state, with a new revision.
//
// On a full disk (a mount of the test, which needs root) a server must reject rows and serve everything else; after a
// kill it must start again with all that was acknowledged. If another process has filled the disk to its last byte, it
// need only start once space is free again.
//
// RR_CRASH_ROUNDS: number of servers to kill for each durability; a few if it is not set.
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
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
// Enough blocks that a dropped run is deleted in several parts.
constexpr int kManySamples = 300;
// Bytes of another user's file on the disk of 16 MiB.
constexpr size_t kOfOthers = 4 << 20;
constexpr std::chrono::seconds kFillTimeout(60);

struct Level {
  Durability durability;
  int rounds;
  bool full_disk = false;
};

// A small disk that contains another user's file, or the reason why there is none. Its mount is visible to this thread
// and to processes that it starts.
class FullDisk {
 public:
  explicit FullDisk(const std::string& path) : path_(path) {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", path.c_str(), "tmpfs", 0, "size=16m") != 0) {
      missing_ = absl::StrCat("no mount of its own: ", std::strerror(errno));
      return;
    }
    std::ofstream(others_, std::ios::binary) << std::string(kOfOthers, 'x');
  }
  ~FullDisk() {
    if (missing_.empty()) umount(path_.c_str());
  }
  const std::string& missing() const { return missing_; }
  // Fills the disk with the other user's file.
  void TakeAll() {
    std::ofstream file(others_, std::ios::binary | std::ios::app);
    const std::string page(4096, 'x');
    while (file.write(page.data(), static_cast<std::streamsize>(page.size())).flush()) {
    }
  }
  void GiveBack() { std::filesystem::resize_file(others_, kOfOthers); }

 private:
  const std::string path_;
  const std::string others_ = path_ + "/of-others";
  std::string missing_;
};

// Creates a run and drops it, again and again, until the server is gone.
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

// For durability `memory`: if the sample exists, it must be one of its earlier states, with a revision that is newer
// than any that a client knows.
void ExpectWholeIfThere(Run& run, const std::string& sample, const CrashHistory& history) {
  SCOPED_TRACE(absl::StrCat(sample, " with ", history.acknowledged().rows(), " acknowledged rows"));
  const auto state = run.Stat(sample);
  if (!state.ok()) {
    EXPECT_EQ(state.status().code(), absl::StatusCode::kNotFound) << state.status();
    return;
  }
  EXPECT_GT(state->revision, history.last().revision);
  ASSERT_OK_AND_ASSIGN(const LayerRows layers, ReadLayers(run, *state));
  const CrashState* left = history.Find(layers, 0);
  ASSERT_NE(left, nullptr) << state->committed_rows << " rows that the sample never had";
  ExpectState(run, *state, *left);
}

class DurableStoreTest : public ::testing::TestWithParam<Level> {
 protected:
  void SetUp() override {
    if (GetParam().full_disk) {
      disk_.emplace(directory_.path());
      if (!disk_->missing().empty()) GTEST_SKIP() << disk_->missing();
    }
    flags_ = {"--store", absl::StrCat("rocksdb:", directory_.path(), "/db")};
    flags_.push_back("--durability");
    flags_.emplace_back(DurabilityName(GetParam().durability));
  }

  // Kills a server under the load of `writers` after the time `after`; on a full disk not before it has rejected rows.
  // With `others`, the other user's file takes the space that the server keeps free. Until the kill, calls of the
  // writers may only fail because the disk is full.
  void KillUnderLoad(std::vector<CrashWriter>& writers, std::chrono::milliseconds after, bool others) {
    ASSERT_OK_AND_ASSIGN(const ServerProcess server, StartServerProcess(RR_SERVER, flags_));
    std::atomic<bool> killed{false};
    std::atomic<bool> rejected{!GetParam().full_disk};
    const auto go_on = [&](const absl::Status& status) {
      if (GetParam().full_disk && absl::IsResourceExhausted(status)) {
        rejected = true;
        return !killed;
      }
      EXPECT_TRUE(status.ok() || killed) << status;
      return status.ok();
    };
    std::vector<std::thread> threads;
    for (CrashWriter& writer : writers) threads.emplace_back([&] { writer.WriteWhile(server.endpoint, go_on); });
    if (!GetParam().full_disk) threads.emplace_back([&] { MakeAndDrop(server.endpoint, killed); });
    const auto deadline = std::chrono::steady_clock::now() + kFillTimeout;
    while (!rejected && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_TRUE(rejected) << "the disk did not get full";
    if (disk_ && others) disk_->TakeAll();
    std::this_thread::sleep_for(after);
    killed = true;
    server.process->Signal(SIGKILL);
    for (std::thread& thread : threads) thread.join();
    ASSERT_OK(server.process->Wait(std::chrono::seconds(10)));
    if (disk_) disk_->GiveBack();
  }

  const ScratchDirectory directory_;
  std::optional<FullDisk> disk_;
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
    ASSERT_NO_FATAL_FAILURE(KillUnderLoad(writers, std::chrono::milliseconds(100 + random() % 700), round % 2 == 1));
    ASSERT_OK_AND_ASSIGN(const ServerProcess server, StartServerProcess(RR_SERVER, flags_));
    ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect({.endpoint = server.endpoint}));
    ASSERT_OK_AND_ASSIGN(const auto run, client->OpenRun("crash", CrashGeometry()));
    const bool lasts = GetParam().durability != Durability::kMemory;
    for (const CrashWriter& writer : writers) {
      for (const auto& [sample, history] : writer.samples()) {
        lasts ? ExpectNothingLost(*run, sample, history) : ExpectWholeIfThere(*run, sample, history);
      }
      samples += writer.samples().size();
    }
    ASSERT_OK(run->Drop());
  }
  if (HasFailure()) return;
  std::printf("%s%s: %d servers killed: %zu samples, none wrong%s\n", DurabilityName(GetParam().durability),
              GetParam().full_disk ? ", full disk" : "", round, samples,
              GetParam().durability == Durability::kMemory ? "" : " and none lost");
}

INSTANTIATE_TEST_SUITE_P(RocksDB, DurableStoreTest,
                         ::testing::Values(Level{Durability::kMemory, 2}, Level{Durability::kWritten, 4},
                                           Level{Durability::kSynced, 2}, Level{Durability::kWritten, 2, true}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.full_disk ? "full_disk_" : "",
                                               DurabilityName(info.param.durability));
                         });

}  // namespace
}  // namespace routing_replay::testing
