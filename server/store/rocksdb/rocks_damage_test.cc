// Damage to RocksDB's log is always reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/conformance/conformance.h"
#include "server/store/rocksdb/rocks_store.h"
#include "tests/support/scratch_directory.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
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
  void Fill(const std::string& run_name, int64_t rows = kRows) {
    const RunInfo run =
        *store_->OpenRun(run_name, &TestGeometry(), RunOptions{.block_rows = 1024, .durability = Durability::kSynced});
    for (int i = 0; i < kSamples; ++i) {
      ASSERT_OK(store_->Append(MakeAppend(
          run, {.run = run_name, .sample = absl::StrCat(i), .rows = {0, rows}, .seal_num_tokens = rows + 1})));
    }
  }
  // Copies the database in the state that a kill at this moment would leave.
  void Kill() {
    const std::string next = absl::StrCat(directory_.path(), "/", ++copies_);
    fs::copy(path_, next, fs::copy_options::recursive);
    path_ = next;
    store_.reset();
  }
  std::vector<fs::path> Logs() const { return Files(".log"); }
  // The paths of the files whose names contain `name`, ascending.
  std::vector<fs::path> Files(const std::string& name) const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path_)) {
      if (entry.path().filename().string().find(name) != std::string::npos) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }
  absl::Status TryOpen() {
    RecoveryReport report;
    return OpenRocksStore({.path = path_, .memory = {.budget = &budget_}}, report).status();
  }

 public:
  static void Flip(const fs::path& file, double part) {
    std::ifstream in(file, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    ASSERT_FALSE(bytes.empty()) << file;
    bytes[static_cast<size_t>(part * static_cast<double>(bytes.size() - 1))] ^= 1;
    std::ofstream(file, std::ios::binary) << bytes;
  }

 protected:
  // Checks the samples that are left: each has a revision that `revisions` accepts, and the rows that were appended.
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

TEST_P(RocksDamagedLogTest, IsToldAndMakesRevisionsNew) {
  Open();
  Fill("run");
  Kill();
  Flip(Logs().back(), GetParam());
  Open();
  EXPECT_TRUE(report_.log_damaged);
  EXPECT_THAT(Describe(report_), ::testing::HasSubstr("the log of the last writes is damaged or missing"));
  const int left = Left("run", ::testing::Gt(0));
  EXPECT_LT(left, kSamples);
  // The next start does not report the damage again.
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
  EXPECT_THAT(Describe(report_), ::testing::HasSubstr("the log of the last writes is damaged or missing"));
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
}

// A start finds the damaged log, and is killed before the store has started. The next start must still know of the
// damage.
TEST_F(RocksDamageTest, AStartThatWasKilledBeforeItTookTheDamageInIsMadeUpFor) {
  Open();
  Fill("run");
  Kill();
  Flip(Logs().back(), 0.9);
  {
    const rocksdb::Options options(RocksDatabaseOptions(rocksdb::NewLRUCache(1 << 20), nullptr),
                                   RocksRunOptions(rocksdb::NewLRUCache(1 << 20)));
    ASSERT_OK_AND_ASSIGN(const OpenedDatabase opened, OpenDatabase(path_, options, "boot"));
    EXPECT_EQ(opened.last_end, LastEnd::kDamaged);
    Kill();
  }
  Open();
  EXPECT_TRUE(report_.log_damaged);
  EXPECT_GT(Left("run", ::testing::Gt(0)), 0);
}

// Applies `damage` to the first file whose name contains `name`. `what` names the case.
struct FileDamage {
  std::string what;
  std::string name;
  std::function<void(const fs::path& file)> damage;
};

class RocksDamagedFileTest : public RocksDamageTest, public ::testing::WithParamInterface<FileDamage> {};

TEST_P(RocksDamagedFileTest, KeepsTheDatabaseShutAndIsTold) {
  Open();
  Fill("run", 10 * kRows);  // Enough for blobs.
  store_.reset();
  std::vector<fs::path> files = Files(GetParam().name);
  ASSERT_FALSE(files.empty());
  GetParam().damage(files.front());
  files = Files("");
  for (const bool again : {false, true}) {
    const absl::Status rejected = TryOpen();
    EXPECT_THAT(rejected, Fails(absl::StatusCode::kDataLoss, Reason::kChecksum)) << again << rejected;
    EXPECT_THAT(std::string(rejected.message()), ::testing::HasSubstr("restore a copy"));
    EXPECT_THAT(Files(""), ::testing::IsSupersetOf(files)) << "nothing is taken away";
  }
}

void Remove(const fs::path& file) { fs::remove(file); }
void Halve(const fs::path& file) { fs::resize_file(file, fs::file_size(file) / 2); }

INSTANTIATE_TEST_SUITE_P(Rocks, RocksDamagedFileTest,
                         ::testing::Values(FileDamage{"TableGone", ".sst", Remove},
                                           FileDamage{"TableCut", ".sst", Halve},
                                           FileDamage{"ManifestGone", "MANIFEST", Remove},
                                           FileDamage{"ManifestDamaged", "MANIFEST",
                                                      [](const fs::path& file) { RocksDamageTest::Flip(file, 0.5); }},
                                           FileDamage{"CurrentGone", "CURRENT", Remove}),
                         [](const auto& info) { return info.param.what; });

TEST_F(RocksDamageTest, WithoutAFileOfRowsTheseAreLost) {
  Open();
  Fill("run", 10 * kRows);
  store_.reset();
  for (const fs::path& file : Files(".blob")) fs::remove(file);
  Open();
  const std::vector<RowRange> all{{0, 10 * kRows}};
  ASSERT_OK_AND_ASSIGN(const SampleSnapshot snapshot,
                       store_->Snapshot("run", Producer::kRollout, {.sample = "0"}, all));
  EXPECT_TRUE(absl::IsDataLoss(RowsOf(TestGeometry(), snapshot).status()));
}

TEST_F(RocksDamageTest, AProcessThatWasKilledWhileItMadeTheDatabaseLeftNone) {
  fs::create_directory(path_);
  for (const char* name : {"LOCK", "IDENTITY", "MANIFEST-000001", "000001.dbtmp"}) std::ofstream(path_ + "/" + name);
  Open();
  Fill("run");
}

TEST_F(RocksDamageTest, ADatabaseThatAnotherProcessHasIsToldToBeSo) {
  Open();
  const absl::Status rejected = TryOpen();
  EXPECT_THAT(rejected, Fails(absl::StatusCode::kUnavailable, Reason::kUnspecified));
  EXPECT_THAT(std::string(rejected.message()), ::testing::HasSubstr("open in another process"));
}

// The log is damaged at a point between two changes. One run's later changes are in table files, while the other run's
// changes are only in the log. So there is no point in time whose data is complete for both runs, and the database must
// not open.
TEST_F(RocksDamageTest, RunsThatWereWrittenToFilesApartKeepTheDatabaseShut) {
  const rocksdb::Options options(RocksDatabaseOptions(rocksdb::NewLRUCache(1 << 20), nullptr),
                                 RocksRunOptions(rocksdb::NewLRUCache(1 << 20)));
  {
    ASSERT_OK_AND_ASSIGN(const OpenedDatabase opened, OpenDatabase(path_, options, "boot"));
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
  for (const bool again : {false, true}) {
    EXPECT_THAT(OpenDatabase(path_, options, "boot").status(), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum))
        << again;
    EXPECT_EQ(Logs().size(), 2);
  }
}

}  // namespace
}  // namespace routing_replay::testing
