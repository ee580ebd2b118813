#include "server/store/rocksdb/rocks_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "server/store/conformance/conformance.h"

namespace routing_replay::testing {
namespace {

// A directory that is gone afterwards.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "rocks_store_test_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~ScratchDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class RocksStoreTest : public ::testing::Test {
 protected:
  void Open() {
    store_.reset();
    report_ = {};
    auto store = OpenRocksStore({.path = directory_.path(), .memory = {.clock = &clock_, .budget = &budget_}}, report_);
    ASSERT_OK(store);
    store_ = *std::move(store);
  }
  SampleState Stat(const std::string& sample) {
    absl::StatusOr<SampleState> state = store_->Stat("run", Producer::kRollout, {.sample = sample});
    EXPECT_OK(state);
    return state.ok() ? *state : SampleState{};
  }
  Rows Read(const std::string& sample) {
    const std::vector<RowRange> all{{0, 1 << 20}};
    const auto snapshot = store_->Snapshot("run", Producer::kRollout, {.sample = sample}, all);
    EXPECT_OK(snapshot);
    const auto rows = RowsOf(TestGeometry(), *snapshot);
    EXPECT_OK(rows);
    return rows.ok() ? *rows : Rows{};
  }

  ScratchDirectory directory_;
  ManualClock clock_;
  ByteBudget budget_{1 << 24};
  RecoveryReport report_;
  std::unique_ptr<Store> store_;
};

TEST_F(RocksStoreTest, EverythingIsThereAfterwards) {
  Open();
  const RunInfo run = *store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {0, 100}, .unrecorded = {{40, 50}}, .group = 7})));
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {100, 130}, .weight_version = 3})));
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "b", .rows = {0, 70}, .seal_num_tokens = 71})));
  ASSERT_OK(store_->Append(
      MakeAppend(run, {.sample = "c", .rows = {60, 90}, .prefix = PrefixReference{.sample = "b", .rows = 60}})));
  std::vector<std::string> before;
  for (const char* sample : {"a", "b", "c"}) before.push_back(Describe(Stat(sample)));
  Open();
  EXPECT_EQ(report_.runs, 1);
  EXPECT_EQ(report_.samples, 3);
  EXPECT_EQ(report_.lost_samples, 0);
  EXPECT_EQ(report_.orphan_blocks, 0);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(Describe(Stat(std::string(1, 'a' + i))), before[i]);
  EXPECT_EQ(Read("a"), ExpectedRows(TestGeometry(), {}, 130, std::vector<RowRange>{{40, 50}}));
  EXPECT_EQ(Read("b"), ExpectedRows(TestGeometry(), {}, 70));
  EXPECT_EQ(Read("c"), ExpectedRows(TestGeometry(), {}, 90));
  // And it goes on.
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {130, 160}})));
  EXPECT_EQ(Read("a"), ExpectedRows(TestGeometry(), {}, 160, std::vector<RowRange>{{40, 50}}));
}

TEST_F(RocksStoreTest, ARunKeepsItsDurability) {
  Open();
  ASSERT_OK_AND_ASSIGN(const RunInfo usual, store_->OpenRun("usual", &TestGeometry(), std::nullopt));
  EXPECT_EQ(usual.options.durability, Durability::kWritten);
  ASSERT_OK(store_->OpenRun("careful", &TestGeometry(), RunOptions{.durability = Durability::kSynced}));
  Open();
  EXPECT_EQ(store_->GetRun("usual")->options, usual.options);
  EXPECT_EQ(store_->GetRun("careful")->options.durability, Durability::kSynced);
}

TEST_F(RocksStoreTest, RestartsAreNoUse) {
  Open();
  const auto hours = [](int count) { return std::chrono::hours(count); };
  const RunInfo run = *store_->OpenRun("run", &TestGeometry(), RunOptions{.ttl = hours(10), .block_rows = 32});
  for (const char* sample : {"read", "idle"}) {
    ASSERT_OK(store_->Append(MakeAppend(run, {.sample = sample, .rows = {0, 40}})));
  }
  clock_.Advance(hours(9));
  EXPECT_FALSE(Read("read").empty());  // Is written down when the sweep finds it.
  clock_.Advance(hours(2));
  EXPECT_EQ(store_->Sweep(10), 1);
  Open();
  EXPECT_EQ(report_.samples, 1);
  // Never too early: what was written may be a TTL old already.
  clock_.Advance(hours(18));
  Open();
  EXPECT_EQ(store_->Sweep(10), 0);
  EXPECT_EQ(Stat("read").committed_rows, 40);
  clock_.Advance(hours(3));
  Open();
  EXPECT_EQ(store_->Sweep(10), 1);
}

TEST_F(RocksStoreTest, WhatEndedStaysGone) {
  Open();
  const RunInfo run = *store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  for (const char* sample : {"a", "b", "c"}) {
    ASSERT_OK(store_->Append(MakeAppend(run, {.sample = sample, .rows = {0, 100}})));
  }
  ASSERT_OK(store_->OpenRun("other", &TestGeometry(), std::nullopt));
  ASSERT_OK(store_->Truncate("run", Producer::kRollout, "b", 10, std::nullopt));
  ASSERT_OK(store_->Release("run", std::nullopt, {{SampleRef{.sample = "a"}}}));
  ASSERT_OK(store_->DropRun("other"));
  Open();
  EXPECT_EQ(report_.runs, 1);
  EXPECT_EQ(report_.samples, 2);
  EXPECT_EQ(Stat("b").committed_rows, 10);
  EXPECT_EQ(Read("b"), ExpectedRows(TestGeometry(), {}, 10));
  EXPECT_FALSE(store_->Stat("run", Producer::kRollout, {.sample = "a"}).ok());
  EXPECT_FALSE(store_->GetRun("other").ok());
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(RocksDB, StoreConformance,
                         ::testing::Values(StoreFactory{
                             "rocksdb",
                             [](ByteBudget& budget, const Clock& clock, HandleFunction handle_of) {
                               static ScratchDirectory directory;
                               static int number = 0;
                               RecoveryReport report;
                               auto store = OpenRocksStore(
                                   {.path = absl::StrCat(directory.path(), "/", number++),
                                    .memory = {.clock = &clock, .budget = &budget, .handle_of = std::move(handle_of)}},
                                   report);
                               EXPECT_OK(store);
                               return *std::move(store);
                             }}),
                         FactoryName);

}  // namespace routing_replay::testing
