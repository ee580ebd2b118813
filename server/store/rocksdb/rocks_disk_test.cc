// The store on a real disk that is full or not writable. It needs a mount of its own, and therefore root.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/conformance/conformance.h"
#include "server/store/rocksdb/rocks_store.h"
#include "tests/support/scratch_directory.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr int64_t kRows = 20000;

class RocksDiskTest : public ::testing::Test {
 protected:
  // All tests use one mount namespace of this process, because RocksDB's threads outlive a database and stay in the
  // namespace in which they were created.
  void SetUp() override {
    static const bool apart =
        unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    if (!apart || mount("tmpfs", disk_.path().c_str(), "tmpfs", 0, "size=16m") != 0) {
      GTEST_SKIP() << "no mount of its own: " << std::strerror(errno);
    }
    mounted_ = true;
  }
  void TearDown() override {
    store_.reset();
    if (mounted_) umount(disk_.path().c_str());
  }
  absl::Status Remount(unsigned long flags, const std::string& options) {
    if (mount("none", disk_.path().c_str(), "tmpfs", MS_REMOUNT | flags, options.c_str()) == 0) return absl::OkStatus();
    return absl::InternalError(std::strerror(errno));
  }

  absl::Status Open() {
    store_.reset();
    RecoveryReport report;
    auto store = OpenRocksStore({.path = disk_.path() + "/db", .memory = {.budget = &budget_}}, report);
    if (!store.ok()) return store.status();
    store_ = *std::move(store);
    auto run = store_->OpenRun("run", &TestGeometry(), std::nullopt);
    if (!run.ok()) return run.status();
    run_ = *std::move(run);
    return absl::OkStatus();
  }
  absl::Status Append(int sample) {
    return store_->Append(MakeAppend(run_, {.sample = absl::StrCat(sample), .rows = {0, kRows}})).status();
  }
  // Appends until the disk is full; returns the number of samples stored.
  int Fill() {
    int samples = 0;
    absl::Status status;
    while (status.ok() && samples < 500) {
      status = Append(samples);
      samples += status.ok();
    }
    EXPECT_THAT(status, Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
    EXPECT_GT(samples, 10);
    return samples;
  }
  void AppendOnceThereIsRoom(int sample) {
    while (!Append(sample).ok()) {
      store_->Sweep(1);  // Frees the space of what was removed.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  void ExpectSamples(int samples) {
    const std::vector<RowRange> all{{0, kRows}};
    const Rows expected = ExpectedRows(TestGeometry(), {}, kRows);
    for (int sample = 0; sample < samples; ++sample) {
      ASSERT_OK_AND_ASSIGN(const SampleSnapshot snapshot,
                           store_->Snapshot("run", Producer::kRollout, {.sample = absl::StrCat(sample)}, all));
      ASSERT_OK_AND_ASSIGN(const Rows rows, RowsOf(TestGeometry(), snapshot));
      ASSERT_EQ(rows, expected) << sample;
    }
  }

  const ScratchDirectory disk_;
  bool mounted_ = false;
  ByteBudget budget_{int64_t{1} << 30};
  std::unique_ptr<Store> store_;
  RunInfo run_;
};

TEST_F(RocksDiskTest, AFullDiskRejectsAppendsServesReadsAndLosesNothing) {
  ASSERT_OK(Open());
  const int samples = Fill();
  EXPECT_OK(store_->Health());
  ExpectSamples(samples);
  EXPECT_TRUE(absl::IsResourceExhausted(Append(samples))) << "again";
  // Unrecorded rows hold no bytes, so these appends are small and some still fit. They, too, are rejected once there is
  // no room.
  absl::Status status;
  for (int i = 0; status.ok() && i < 100'000; ++i) {
    status = store_->Append(MakeAppend(run_, {.sample = absl::StrCat("n", i), .rows = {0, 1}, .unrecorded = {{0, 1}}}))
                 .status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_OK(store_->Health());
  EXPECT_TRUE(absl::IsNotFound(store_->Stat("run", Producer::kRollout, {.sample = absl::StrCat(samples)}).status()));
  ASSERT_OK(Remount(0, "size=256m"));
  ASSERT_OK(Open());
  ExpectSamples(samples);
  EXPECT_OK(Append(samples));
  ExpectSamples(samples + 1);
}

// The actions that the error message suggests on a full disk.
TEST_F(RocksDiskTest, OnAFullDiskReleaseMakesRoom) {
  ASSERT_OK(Open());
  const int samples = Fill();
  std::vector<SampleRef> half;
  for (int sample = samples / 2; sample < samples; ++sample) half.push_back({.sample = absl::StrCat(sample)});
  ASSERT_OK(store_->Release("run", std::nullopt, half));
  AppendOnceThereIsRoom(samples);
  ExpectSamples(samples / 2);
}

TEST_F(RocksDiskTest, OnAFullDiskADropMakesRoom) {
  ASSERT_OK(Open());
  ASSERT_OK(store_->OpenRun("other", &TestGeometry(), std::nullopt));
  Fill();
  ASSERT_OK(store_->DropRun("run"));
  ASSERT_OK(store_->DropRun("other"));
  while (!store_->OpenRun("run", &TestGeometry(), std::nullopt).ok()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  AppendOnceThereIsRoom(0);
  ExpectSamples(1);
}

TEST_F(RocksDiskTest, AFullDiskIsStartedOnAgain) {
  ASSERT_OK(Open());
  const int samples = Fill();
  for (int start = 0; start < 3; ++start) {
    ASSERT_OK(Open());
    ExpectSamples(samples);
    EXPECT_OK(store_->Health());
  }
  ASSERT_OK(store_->DropRun("run"));
}

TEST_F(RocksDiskTest, ADiskThatCannotBeWrittenToIsRejectedAndLeftAsItIs) {
  ASSERT_OK(Open());
  ASSERT_OK(Append(0));
  store_.reset();
  ASSERT_OK(Remount(MS_RDONLY, ""));
  const absl::Status rejected = Open();
  EXPECT_TRUE(absl::IsUnavailable(rejected)) << rejected;
  ASSERT_OK(Remount(0, ""));
  ASSERT_OK(Open());
  ExpectSamples(1);
  EXPECT_OK(Append(1));
}

}  // namespace
}  // namespace routing_replay::testing
