#include "server/store/rocksdb/rocks_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/mutex.h"
#include "server/store/conformance/conformance.h"
#include "server/store/rocksdb/rocks_database.h"
#include "tests/support/scratch_directory.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

// After Fail(status, of), writes to files whose names contain `of` fail with that status, until Fail(OK).
class FaultyFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  FaultyFileSystem() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}

  const char* Name() const override { return "faulty"; }
  void Fail(const rocksdb::IOStatus& status, const std::string& of = "") {
    MutexLock lock(mutex_);
    status_ = status;
    of_ = of;
  }
  // The number of bytes that RocksDB has asked to append, over all files.
  int64_t appended() const { return appended_; }
  rocksdb::IOStatus status(const std::string& name = "") const {
    MutexLock lock(mutex_);
    return name.find(of_) == std::string::npos ? rocksdb::IOStatus::OK() : status_;
  }
  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override {
    if (!status(name).ok()) return status(name);
    const rocksdb::IOStatus made = FileSystemWrapper::NewWritableFile(name, options, file, debug);
    if (made.ok()) *file = std::make_unique<File>(*this, name, std::move(*file));
    return made;
  }
  // Reports no free space while writes fail, so that RocksDB does not resume yet: if it did, it might stop permanently.
  rocksdb::IOStatus GetFreeSpace(const std::string& path, const rocksdb::IOOptions& options, uint64_t* bytes,
                                 rocksdb::IODebugContext* debug) override {
    if (status().ok()) return FileSystemWrapper::GetFreeSpace(path, options, bytes, debug);
    *bytes = 0;
    return rocksdb::IOStatus::OK();
  }

 private:
  class File final : public rocksdb::FSWritableFileOwnerWrapper {
   public:
    File(const FaultyFileSystem& files, std::string name, std::unique_ptr<rocksdb::FSWritableFile> file)
        : FSWritableFileOwnerWrapper(std::move(file)), files_(files), name_(std::move(name)) {}
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* debug) override {
      files_.appended_ += static_cast<int64_t>(data.size());
      const rocksdb::IOStatus status = files_.status(name_);
      return status.ok() ? FSWritableFileOwnerWrapper::Append(data, options, debug) : status;
    }
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             const rocksdb::DataVerificationInfo& info, rocksdb::IODebugContext* debug) override {
      const rocksdb::IOStatus status = files_.status(name_);
      return status.ok() ? FSWritableFileOwnerWrapper::Append(data, options, info, debug) : status;
    }

   private:
    const FaultyFileSystem& files_;
    const std::string name_;
  };

  mutable std::atomic<int64_t> appended_{0};
  mutable Mutex mutex_;
  rocksdb::IOStatus status_ ABSL_GUARDED_BY(mutex_);
  std::string of_ ABSL_GUARDED_BY(mutex_);
};

class RocksStoreTest : public ::testing::Test {
 protected:
  void Open() {
    store_.reset();
    report_ = {};
    auto store = OpenRocksStore(
        {.path = path_, .env = env_.get(), .boot_id = boot_id_, .memory = {.clock = &clock_, .budget = budget_.get()}},
        report_);
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

  // Opens a copy of what a server killed now would leave. Closes the test's first store.
  void OpenAfterACrash() {
    const std::string next = absl::StrCat(directory_.path(), "/", ++crashes_);
    // RocksDB may remove a flushed log during the copy: then the copy is incomplete, and is repeated.
    for (std::error_code error(ENOENT, std::generic_category()); error;) {
      std::filesystem::remove_all(next);
      std::filesystem::copy(path_, next, std::filesystem::copy_options::recursive, error);
    }
    path_ = next;
    clock_.Advance(std::chrono::seconds(1));
    Open();
  }

  // Closes the store, and flips a bit of the record with this key.
  void Damage(const std::string& key) {
    store_.reset();
    const rocksdb::Options options;
    std::vector<std::string> names;
    ASSERT_TRUE(rocksdb::DB::ListColumnFamilies(options, path_, &names).ok());
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const std::string& name : names) families.emplace_back(name, rocksdb::ColumnFamilyOptions());
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* opened = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(options, path_, families, &handles, &opened).ok());
    const std::unique_ptr<rocksdb::DB> db(opened);
    for (rocksdb::ColumnFamilyHandle* handle : handles) {
      std::string value;
      if (db->Get(rocksdb::ReadOptions(), handle, key, &value).ok()) {
        value[value.size() / 2] ^= 1;
        EXPECT_TRUE(db->Put(rocksdb::WriteOptions(), handle, key, value).ok());
      }
      EXPECT_TRUE(db->DestroyColumnFamilyHandle(handle).ok());
    }
  }

  ScratchDirectory directory_;
  std::string path_ = directory_.path() + "/0";
  int crashes_ = 0;
  std::string boot_id_ = "first";
  ManualClock clock_;
  const std::shared_ptr<FaultyFileSystem> files_ = std::make_shared<FaultyFileSystem>();
  const std::unique_ptr<rocksdb::Env> env_ = rocksdb::NewCompositeEnv(files_);
  std::unique_ptr<ByteBudget> budget_ = std::make_unique<ByteBudget>(1 << 24);
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
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(Describe(Stat(std::string(1, 'a' + i))), before[i]);
  EXPECT_EQ(Read("a"), ExpectedRows(TestGeometry(), {}, 130, std::vector<RowRange>{{40, 50}}));
  EXPECT_EQ(Read("b"), ExpectedRows(TestGeometry(), {}, 70));
  EXPECT_EQ(Read("c"), ExpectedRows(TestGeometry(), {}, 90));
  // Appends work again.
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {130, 160}})));
  EXPECT_EQ(Read("a"), ExpectedRows(TestGeometry(), {}, 160, std::vector<RowRange>{{40, 50}}));
}

TEST_F(RocksStoreTest, RowsWithoutBytesTakeAShortLog) {
  Open();
  const RunInfo run = *store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  const auto append = [&](RowRange rows, int64_t revision) {
    AppendCommand command = MakeAppend(run, {.rows = rows, .unrecorded = {rows}, .revision = revision});
    command.header.token_ids.clear();
    command.header.token_check_start.reset();
    return store_->Append(std::move(command));
  };
  const int64_t before = files_->appended();
  int64_t rows = 0;
  for (int64_t revision = 0; revision < 4; ++revision) {
    ASSERT_OK(append({rows, kMaxRows}, revision));
    rows = 32000 * revision + 7 * (revision % 2);
    ASSERT_OK(store_->Truncate("run", Producer::kRollout, "s", rows, std::nullopt));
  }
  EXPECT_LT(files_->appended() - before, 64 << 10);
  const std::string state = Describe(Stat("s"));
  Open();
  EXPECT_EQ(Describe(Stat("s")), state);
  ASSERT_OK(store_->Append(MakeAppend(run, {.rows = {rows, rows + 100}, .revision = 4})));
  Open();
  EXPECT_EQ(Read("s"), ExpectedRows(TestGeometry(), {}, rows + 100, std::vector<RowRange>{{0, rows}}));
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

TEST_F(RocksStoreTest, TimeWithoutAServerIsNoIdleness) {
  const auto hours = [](int count) { return std::chrono::hours(count); };
  for (const bool clean : {true, false}) {
    SCOPED_TRACE(clean);
    Open();
    const std::string sample = clean ? "ended" : "killed";
    const RunInfo run = *store_->OpenRun("run", &TestGeometry(), RunOptions{.ttl = hours(10), .block_rows = 32});
    ASSERT_OK(store_->Append(MakeAppend(run, {.sample = sample, .rows = {0, 40}})));
    if (clean) {
      clock_.Advance(hours(9));
      store_.reset();
    }
    clock_.Advance(hours(1000));
    clean ? Open() : OpenAfterACrash();
    EXPECT_EQ(store_->Sweep(10), 0);
    EXPECT_EQ(Stat(sample).committed_rows, 40);
    Open();  // It is not removed when the server starts again, either.
    EXPECT_EQ(store_->Sweep(10), 0);
    // Time with a running server counts: 11 h are more than the TTL of 10 h.
    clock_.Advance(hours(11));
    EXPECT_EQ(store_->Sweep(10), 1);
  }
}

TEST_F(RocksStoreTest, AFullDiskRejectsAppendsAndServesReads) {
  Open();
  const RunInfo run = *store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {0, 100}})));
  files_->Fail(rocksdb::IOStatus::NoSpace("no room"));
  const auto full = Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget);
  EXPECT_THAT(store_->Append(MakeAppend(run, {.sample = "a", .rows = {100, 130}})), full);
  EXPECT_THAT(store_->Append(MakeAppend(run, {.sample = "b", .rows = {0, 10}})), full);
  EXPECT_THAT(store_->Seal("run", Producer::kRollout, "a", 101, 0), full);
  EXPECT_THAT(store_->Health(), full);
  EXPECT_FALSE(store_->Release("run", std::nullopt, {{SampleRef{.sample = "a"}}}).ok());
  EXPECT_EQ(Read("a"), ExpectedRows(TestGeometry(), {}, 100));
  files_->Fail(rocksdb::IOStatus::OK());
  // RocksDB looks every few seconds whether there is room again.
  while (!store_->Append(MakeAppend(run, {.sample = "a", .rows = {100, 160}})).ok()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  while (!store_->Health().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  Open();
  EXPECT_EQ(Read("a"), ExpectedRows(TestGeometry(), {}, 160));
  EXPECT_FALSE(store_->Stat("run", Producer::kRollout, {.sample = "b"}).ok());
}

TEST_F(RocksStoreTest, ABrokenDiskRejectsAppendsAndServesReads) {
  Open();
  const RunInfo run = *store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {0, 100}})));
  files_->Fail(rocksdb::IOStatus::IOError("broken"));
  const auto broken = Fails(absl::StatusCode::kUnavailable, Reason::kUnspecified);
  EXPECT_THAT(store_->Append(MakeAppend(run, {.sample = "a", .rows = {100, 130}})), broken);
  EXPECT_THAT(store_->OpenRun("other", &TestGeometry(), std::nullopt), broken);
  EXPECT_THAT(store_->Health(), broken);
  EXPECT_EQ(Read("a"), ExpectedRows(TestGeometry(), {}, 100));
  files_->Fail(rocksdb::IOStatus::OK());
  Open();
  EXPECT_EQ(Read("a"), ExpectedRows(TestGeometry(), {}, 100));
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {100, 160}})));
}

// The run's column family is dropped as a whole, without deleting its blocks one by one.
TEST_F(RocksStoreTest, ADroppedRunIsNotWrittenTo) {
  Open();
  const RunInfo run = *store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  for (int i = 0; i < 40; ++i) {
    ASSERT_OK(store_->Append(MakeAppend(run, {.sample = absl::StrCat(i), .rows = {0, 1000}})));
  }
  const int64_t before = files_->appended();
  ASSERT_OK(store_->DropRun("run"));
  EXPECT_LT(files_->appended() - before, 10'000);
}

// Dropping a run must free the disk space of its rows, in its own files and in logs that also hold records of other
// runs.
TEST_F(RocksStoreTest, ADroppedRunGivesItsDiskBack) {
  budget_ = std::make_unique<ByteBudget>(int64_t{1} << 28);
  Open();
  const auto size = [this] {
    int64_t bytes = 0;
    std::error_code gone;  // A file may be removed before its size is read.
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      const auto file = std::filesystem::file_size(entry.path(), gone);
      if (!gone) bytes += static_cast<int64_t>(file);
    }
    return bytes;
  };
  const RunInfo other = *store_->OpenRun("other", &TestGeometry(), RunOptions{.block_rows = 32});
  const RunInfo run = *store_->OpenRun("run", &TestGeometry(), std::nullopt);
  ASSERT_OK(store_->Append(MakeAppend(other, {.run = "other", .sample = "a", .rows = {0, 100}})));
  for (int i = 0; i < 100; ++i) {
    ASSERT_OK(store_->Append(MakeAppend(run, {.sample = absl::StrCat(i), .rows = {0, 20000}})));
  }
  EXPECT_GT(size(), 10'000'000);
  ASSERT_OK(store_->DropRun("run"));
  while (size() > 2'000'000) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_OK(store_->Stat("other", Producer::kRollout, {.sample = "a"}));
}

// The parameter says which record is damaged: that of the run, or one of a sample.
class RocksDamagedRunTest : public RocksStoreTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(RocksDamagedRunTest, LeavesTheOthersAlone) {
  Open();
  const RunInfo run = *store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  const RunInfo other = *store_->OpenRun("other", &TestGeometry(), RunOptions{.block_rows = 32});
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {0, 100}})));
  ASSERT_OK(store_->Append(MakeAppend(other, {.run = "other", .sample = "b", .rows = {0, 100}})));
  Damage(GetParam());
  for (int opened = 0; opened < 2; ++opened) {
    Open();
    EXPECT_EQ(report_.runs, 1);
    EXPECT_THAT(report_.damaged_runs, ::testing::ElementsAre("run"));
    EXPECT_THAT(store_->OpenRun("run", &TestGeometry(), std::nullopt),
                Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
    EXPECT_OK(store_->Stat("other", Producer::kRollout, {.sample = "b"}));
  }
  Damage(GetParam());  // Flips the bit back.
  Open();
  EXPECT_EQ(report_.runs, 2);
  EXPECT_EQ(Read("a"), ExpectedRows(TestGeometry(), {}, 100));
}

INSTANTIATE_TEST_SUITE_P(Records, RocksDamagedRunTest,
                         ::testing::Values(rocks::RunKey("run"), rocks::HeadKey(Producer::kRollout, "a"),
                                           rocks::WindowKey(Producer::kRollout, "a", 2)));

TEST_F(RocksStoreTest, ADamagedRunCanBeDroppedAndMadeAgain) {
  Open();
  const RunInfo run = *store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {0, 100}})));
  Damage(rocks::RunKey("run"));
  Open();
  ASSERT_OK(store_->DropRun("run"));
  EXPECT_THAT(store_->DropRun("run"), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  ASSERT_OK(store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32}));
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "b", .rows = {0, 40}})));
  Open();
  EXPECT_TRUE(report_.damaged_runs.empty());
  EXPECT_EQ(report_.samples, 1);
}

TEST_F(RocksStoreTest, ASmallerBudgetIsRejected) {
  Open();
  const RunInfo run = *store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  for (int i = 0; i < 100; ++i) {
    ASSERT_OK(store_->Append(MakeAppend(run, {.sample = absl::StrCat(i), .rows = {0, 40}})));
  }
  const int64_t used = budget_->used();
  store_.reset();
  const auto open_with = [this](int64_t bytes) {
    ByteBudget budget(bytes);
    RecoveryReport report;
    return OpenRocksStore({.path = path_, .memory = {.budget = &budget}}, report).status();
  };
  for (const int64_t bytes : {used - 1, int64_t{1}}) {  // With one byte there is not even room for the run.
    const absl::Status rejected = open_with(bytes);
    EXPECT_THAT(rejected, Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
    EXPECT_THAT(std::string(rejected.message()), ::testing::HasSubstr("a larger --memory-budget"));
  }
  EXPECT_OK(open_with(used));
}

TEST_F(RocksStoreTest, WhatIsInMemoryIsKeptWhenTheStoreIsClosed) {
  Open();
  const RunInfo run =
      *store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32, .durability = Durability::kMemory});
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {0, 100}, .seal_num_tokens = 101})));
  const std::string before = Describe(Stat("a"));
  boot_id_ = "second";
  Open();
  EXPECT_EQ(report_.doubtful_runs, 0);
  EXPECT_EQ(Describe(Stat("a")), before);
  EXPECT_EQ(Read("a"), ExpectedRows(TestGeometry(), {}, 100));
}

TEST_F(RocksStoreTest, AfterACrashRunsInMemoryHaveOtherRevisions) {
  Open();
  const RunInfo run =
      *store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32, .durability = Durability::kMemory});
  const RunInfo other = *store_->OpenRun("other", &TestGeometry(), RunOptions{.block_rows = 32});
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {0, 100}})));
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "sealed", .rows = {0, 40}, .seal_num_tokens = 41})));
  Open();
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {100, 130}})));
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "gone", .rows = {0, 100}, .seal_num_tokens = 101})));
  ASSERT_OK(store_->Append(MakeAppend(other, {.run = "other", .sample = "b", .rows = {0, 100}})));
  SampleState before = Stat("a");
  for (int crash = 0; crash < 2; ++crash) {
    OpenAfterACrash();
    EXPECT_EQ(report_.doubtful_runs, 1);
    EXPECT_EQ(report_.doubtful_samples, 2);
    EXPECT_THAT(Describe(report_), ::testing::HasSubstr("not clean: 1 runs"));
    const SampleState left = Stat("a");
    EXPECT_EQ(left.committed_rows, 100);
    EXPECT_GT(left.revision, before.revision);
    EXPECT_NE(left.content_id, before.content_id);
    EXPECT_EQ(Read("a"), ExpectedRows(TestGeometry(), {}, 100));
    EXPECT_GT(Stat("sealed").revision, 0);
    EXPECT_EQ(Stat("sealed").num_tokens, 41);
    EXPECT_FALSE(store_->Stat("run", Producer::kRollout, {.sample = "gone"}).ok());
    EXPECT_EQ(store_->Stat("other", Producer::kRollout, {.sample = "b"})->revision, 0);
    EXPECT_THAT(store_->Append(MakeAppend(run, {.sample = "a", .rows = {100, 130}, .revision = before.revision})),
                Fails(absl::StatusCode::kFailedPrecondition, Reason::kOldRevision));
    ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {100, 130}, .revision = left.revision})));
    before = Stat("a");
  }
}

TEST_F(RocksStoreTest, AfterACrashOfTheMachineOnlySyncedRunsKeepTheirRevisions) {
  Open();
  for (const Durability level : {Durability::kWritten, Durability::kSynced}) {
    const std::string name(DurabilityName(level));
    const RunInfo run = *store_->OpenRun(name, &TestGeometry(), RunOptions{.block_rows = 32, .durability = level});
    ASSERT_OK(store_->Append(MakeAppend(run, {.run = name, .sample = "a", .rows = {0, 100}})));
  }
  boot_id_ = "second";
  OpenAfterACrash();
  EXPECT_EQ(report_.doubtful_runs, 1);
  EXPECT_EQ(report_.doubtful_samples, 1);
  EXPECT_GT(store_->Stat("written", Producer::kRollout, {.sample = "a"})->revision, 0);
  EXPECT_EQ(store_->Stat("synced", Producer::kRollout, {.sample = "a"})->revision, 0);
}

// A write to a dropped column family would make the database reject all writes.
TEST_F(RocksStoreTest, DroppingABigRunUnderWritersLeavesOthersAlone) {
  Open();
  const RunInfo run = *store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  const RunInfo other = *store_->OpenRun("other", &TestGeometry(), RunOptions{.block_rows = 32});
  for (int i = 0; i < 300; ++i) {
    ASSERT_OK(store_->Append(MakeAppend(run, {.sample = absl::StrCat("s", i), .rows = {0, 4}})));
  }
  std::atomic<int> writing{0};
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      for (int i = 0;; ++i) {
        const auto ack = store_->Append(MakeAppend(run, {.sample = absl::StrCat(writer, "/", i), .rows = {0, 4}}));
        if (i == 0) ++writing;
        if (ack.ok()) continue;
        EXPECT_THAT(ack, Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
        return;
      }
    });
  }
  while (writing < 4) std::this_thread::yield();
  ASSERT_OK(store_->DropRun("run"));
  for (std::thread& writer : writers) writer.join();
  EXPECT_OK(store_->Append(MakeAppend(other, {.run = "other", .sample = "a", .rows = {0, 100}})));
  EXPECT_OK(store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32}));
  EXPECT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {0, 100}})));
  Open();
  EXPECT_EQ(report_.runs, 2);
  EXPECT_EQ(report_.samples, 2);
}

// The run's record is removed first. A column family that cannot be dropped then is dropped later.
TEST_F(RocksStoreTest, ARunWhoseRowsCannotBeDroppedIsGone) {
  Open();
  const RunInfo run = *store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {0, 100}})));
  files_->Fail(rocksdb::IOStatus::IOError("broken"), "MANIFEST");
  EXPECT_OK(store_->DropRun("run"));
  EXPECT_THAT(store_->GetRun("run"), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  EXPECT_THAT(store_->Append(MakeAppend(run, {.sample = "a", .rows = {100, 130}})),
              Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  EXPECT_THAT(store_->OpenRun("run", &TestGeometry(), std::nullopt),
              Fails(absl::StatusCode::kUnavailable, Reason::kUnspecified));
  files_->Fail(rocksdb::IOStatus::OK());
  Open();
  EXPECT_EQ(report_.runs, 0);
  ASSERT_OK(store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32}));
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {0, 40}})));
  EXPECT_EQ(Read("a"), ExpectedRows(TestGeometry(), {}, 40));
}

TEST_F(RocksStoreTest, ARunThatCannotBeDroppedGoesOn) {
  Open();
  const RunInfo run = *store_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  ASSERT_OK(store_->Append(MakeAppend(run, {.sample = "a", .rows = {0, 100}})));
  files_->Fail(rocksdb::IOStatus::IOError("broken"));
  EXPECT_THAT(store_->DropRun("run"), Fails(absl::StatusCode::kUnavailable, Reason::kUnspecified));
  EXPECT_EQ(Read("a"), ExpectedRows(TestGeometry(), {}, 100));
  files_->Fail(rocksdb::IOStatus::OK());
  Open();
  EXPECT_EQ(report_.runs, 1);
  EXPECT_EQ(Read("a"), ExpectedRows(TestGeometry(), {}, 100));
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
