// Damage to what RocksDB logged last is never silent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/conformance/conformance.h"
#include "server/store/rocksdb/rocks_open.h"
#include "server/store/rocksdb/rocks_store.h"
#include "tests/support/scratch_directory.h"

namespace routing_replay::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kSamples = 20;
constexpr int64_t kRows = 100;

class RocksDamageTest : public ::testing::Test {
 protected:
  void Open() {
    store_.reset();
    report_ = {};
    clock_.Advance(std::chrono::seconds(1));
    auto store =
        OpenRocksStore({.path = path_, .boot_id = "boot", .memory = {.clock = &clock_, .budget = &budget_}}, report_);
    ASSERT_OK(store);
    store_ = *std::move(store);
  }
  void Fill(const std::string& run_name) {
    const RunInfo run = *store_->OpenRun(run_name, &TestGeometry(), RunOptions{.durability = Durability::kSynced});
    for (int i = 0; i < kSamples; ++i) {
      ASSERT_OK(store_->Append(MakeAppend(
          run, {.run = run_name, .sample = absl::StrCat(i), .rows = {0, kRows}, .seal_num_tokens = kRows + 1})));
    }
  }
  // The database as a process that is killed now leaves it.
  void Kill() {
    const std::string next = absl::StrCat(directory_.path(), "/", ++copies_);
    fs::copy(path_, next, fs::copy_options::recursive);
    path_ = next;
    store_.reset();
  }
  // Ascending, by number.
  std::vector<fs::path> Logs() const {
    std::vector<fs::path> logs;
    for (const auto& entry : fs::directory_iterator(path_)) {
      if (entry.path().extension() == ".log") logs.push_back(entry.path());
    }
    std::sort(logs.begin(), logs.end());
    return logs;
  }
  static void Flip(const fs::path& file, double part) {
    std::ifstream in(file, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    ASSERT_FALSE(bytes.empty()) << file;
    bytes[static_cast<size_t>(part * static_cast<double>(bytes.size() - 1))] ^= 1;
    std::ofstream(file, std::ios::binary) << bytes;
  }
  // Those that are left, each with a revision that `revisions` takes and the rows that were appended.
  template <typename Matcher>
  int Left(const std::string& run, const Matcher& revisions) {
    int left = 0;
    for (int i = 0; i < kSamples; ++i) {
      const std::vector<RowRange> all{{0, kRows}};
      const auto snapshot = store_->Snapshot(run, Producer::kRollout, {.sample = absl::StrCat(i)}, all);
      if (absl::IsNotFound(snapshot.status())) continue;
      EXPECT_OK(snapshot);
      ++left;
      EXPECT_THAT(store_->Stat(run, Producer::kRollout, {.sample = absl::StrCat(i)})->revision, revisions);
      const auto rows = RowsOf(TestGeometry(), *snapshot);
      EXPECT_OK(rows);
      EXPECT_EQ(*rows, ExpectedRows(TestGeometry(), {}, kRows));
    }
    return left;
  }

  ScratchDirectory directory_;
  std::string path_ = directory_.path() + "/0";
  int copies_ = 0;
  ManualClock clock_;
  ByteBudget budget_{1 << 26};
  RecoveryReport report_;
  std::unique_ptr<Store> store_;
};

class RocksDamagedLogTest : public RocksDamageTest, public ::testing::WithParamInterface<double> {};

TEST_P(RocksDamagedLogTest, IsToldAndKeptAndMakesRevisionsNew) {
  Open();
  Fill("run");
  Kill();
  const std::string log = Logs().back().filename();
  Flip(Logs().back(), GetParam());
  Open();
  EXPECT_TRUE(report_.log_damaged);
  EXPECT_TRUE(fs::exists(fs::path(report_.log_copy) / log)) << report_.log_copy;
  EXPECT_THAT(Describe(report_), ::testing::HasSubstr(report_.log_copy));
  const int left = Left("run", ::testing::Gt(0));
  EXPECT_LT(left, kSamples);
  // And once.
  Open();
  EXPECT_FALSE(report_.log_damaged);
  EXPECT_EQ(report_.doubtful_runs, 0);
  EXPECT_EQ(Left("run", ::testing::Gt(0)), left);
}

INSTANTIATE_TEST_SUITE_P(BeginMiddleEnd, RocksDamagedLogTest, ::testing::Values(0.0, 0.3, 0.6, 1.0));

TEST_F(RocksDamageTest, ALogThatIsGoneIsTold) {
  Open();
  Fill("run");
  Open();
  Fill("other");
  Kill();
  for (const fs::path& log : Logs()) fs::remove(log);
  Open();
  EXPECT_TRUE(report_.log_damaged);
  EXPECT_THAT(Describe(report_), ::testing::HasSubstr("gone"));
  EXPECT_EQ(Left("run", ::testing::Gt(0)), kSamples);
}

TEST_F(RocksDamageTest, WhatAKilledProcessHadNotWrittenWhollyIsNoDamage) {
  Open();
  Fill("run");
  Kill();
  fs::resize_file(Logs().back(), fs::file_size(Logs().back()) - 10);
  Open();
  EXPECT_FALSE(report_.log_damaged);
  EXPECT_EQ(Left("run", 0), kSamples - 1);
}

TEST_F(RocksDamageTest, AfterACleanEndNoLogIsNeeded) {
  Open();
  Fill("run");
  for (const bool remove : {false, true}) {
    store_.reset();
    for (const fs::path& log : Logs()) {
      if (remove) {
        fs::remove(log);
      } else {
        std::ofstream(log, std::ios::binary | std::ios::app) << std::string(100, 'x');
        Flip(log, 0.0);
      }
    }
    Open();
    EXPECT_FALSE(report_.log_damaged);
    EXPECT_EQ(Left("run", 0), kSamples);
  }
  for (const auto& entry : fs::directory_iterator(path_)) EXPECT_FALSE(entry.is_directory()) << entry.path();
}

// Between the copy and the first word of the new database nothing of the damage is forgotten.
TEST_F(RocksDamageTest, AStartThatWasKilledBeforeItTookTheDamageInIsMadeUpFor) {
  Open();
  Fill("run");
  Kill();
  fs::create_directory(path_ + "/damaged-log.new");
  fs::copy(Logs().back(), path_ + "/damaged-log.new/000009.log");
  Open();
  EXPECT_TRUE(report_.log_damaged);
  EXPECT_TRUE(fs::exists(report_.log_copy + "/000009.log"));
  EXPECT_EQ(Left("run", ::testing::Gt(0)), kSamples);
}

TEST_F(RocksDamageTest, WhatKeepsADatabaseShutIsTold) {
  Open();
  Fill("run");
  const auto refused = [this] {
    RecoveryReport report;
    return OpenRocksStore({.path = path_, .memory = {.budget = &budget_}}, report).status();
  };
  EXPECT_THAT(refused(), Fails(absl::StatusCode::kUnavailable, Reason::kUnspecified));
  EXPECT_THAT(refused().message(), ::testing::HasSubstr("open in another process"));
  store_.reset();
  for (const auto& entry : fs::directory_iterator(path_)) {
    if (entry.path().extension() == ".sst") fs::remove(entry.path());
  }
  EXPECT_THAT(refused(), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  EXPECT_THAT(refused().message(), ::testing::HasSubstr("put a copy"));
  EXPECT_FALSE(fs::exists(path_ + "/damaged-log.new"));
}

// One family was flushed after the damage and the other was not: there is no point in time that both can be taken to.
TEST_F(RocksDamageTest, FamiliesThatWereFlushedApartAreReadAsFarAsTheyGo) {
  const rocksdb::Options options(RocksDatabaseOptions(rocksdb::NewLRUCache(1 << 20), nullptr),
                                 RocksRunOptions(rocksdb::NewLRUCache(1 << 20)));
  const DamagedLog log(*rocksdb::Env::Default(), path_);
  {
    ASSERT_OK_AND_ASSIGN(const OpenedDatabase opened, OpenDatabase(path_, options, log));
    rocksdb::DB& db = *opened.db;
    rocksdb::ColumnFamilyHandle* handle = nullptr;
    ASSERT_TRUE(db.CreateColumnFamily(options, "flushed", &handle).ok());
    const RocksFamily flushed(opened.db, handle);
    const auto put = [&](rocksdb::ColumnFamilyHandle* family, const std::string& key) {
      ASSERT_TRUE(db.Put(rocksdb::WriteOptions(), family, key, "value").ok());
    };
    put(opened.by_default->handle, "before");
    put(opened.by_default->handle, "damaged");
    put(flushed.handle, "a");
    ASSERT_TRUE(db.Flush(rocksdb::FlushOptions(), flushed.handle).ok());
    put(flushed.handle, "b");
    Kill();
  }
  ASSERT_EQ(Logs().size(), 2);
  Flip(Logs().front(), 0.5);
  const DamagedLog damaged(*rocksdb::Env::Default(), path_);
  ASSERT_OK_AND_ASSIGN(const OpenedDatabase opened, OpenDatabase(path_, options, damaged));
  EXPECT_TRUE(damaged.noted());
  std::string value;
  for (const char* key : {"a", "b"}) {
    EXPECT_TRUE(opened.db->Get({}, opened.families.at("flushed")->handle, key, &value).ok()) << key;
  }
  EXPECT_TRUE(opened.db->Get({}, opened.by_default->handle, "before", &value).ok());
  EXPECT_TRUE(opened.db->Get({}, opened.by_default->handle, "damaged", &value).IsNotFound());
}

}  // namespace
}  // namespace routing_replay::testing
