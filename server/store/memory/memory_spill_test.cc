// The memory store with a spill directory: the conformance suite with everything spilled as early as possible, and
// tests of spilling itself.
#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/store/conformance/conformance.h"
#include "server/store/memory/memory_store.h"
#include "server/store/testing/faulty_spill_disk.h"
#include "tests/support/scratch_directory.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr auto kRollout = Producer::kRollout;
const std::vector<RowRange> kAll{{0, kMaxRows}};

class MemorySpillTest : public ::testing::Test {
 protected:
  MemorySpillTest() { Make({.begin = 0.75, .end = 0.5, .background = false}); }

  void Make(SpillOptions options) {
    store_.reset();
    options.disk = disk_;
    options.pause = std::chrono::milliseconds(0);
    options.warn = [this](const std::string& line) {
      MutexLock lock(mutex_);
      warnings_.push_back(line);
    };
    store_ = NewMemoryStore({.clock = &clock_, .budget = &budget_, .spill = options});
    run_ = *store_->OpenRun("run", &TestGeometry(), RunOptions{.ttl = std::chrono::hours(1), .block_rows = 256});
  }
  // Appends rows [0, rows) and seals the sample.
  absl::Status Fill(const std::string& sample, int64_t rows) {
    return store_->Append(MakeAppend(run_, {.sample = sample, .rows = {0, rows}, .seal_num_tokens = rows + 1}))
        .status();
  }
  absl::StatusOr<Rows> Read(const std::string& sample) {
    const auto snapshot = store_->Snapshot("run", kRollout, {.sample = sample}, kAll);
    if (!snapshot.ok()) return snapshot.status();
    return RowsOf(TestGeometry(), *snapshot);
  }
  Store::Totals::Spill Spilled() { return *store_->GetTotals().spill; }
  int64_t StoredBytes(const std::string& sample) {
    return store_->Stat("run", kRollout, {.sample = sample})->stored_bytes;
  }

  static constexpr int64_t kRows = 2048;
  ManualClock clock_;
  ByteBudget budget_{1 << 19};
  const std::shared_ptr<FaultySpillDisk> disk_ = std::make_shared<FaultySpillDisk>();
  Mutex mutex_;
  std::vector<std::string> warnings_ ABSL_GUARDED_BY(mutex_);
  RunInfo run_;
  std::unique_ptr<Store> store_;
};

TEST_F(MemorySpillTest, TheBudgetBoundsTheMemoryAndNotTheRun) {
  constexpr int kSamples = 80;
  for (int i = 0; i < kSamples; ++i) {
    clock_.Advance(std::chrono::seconds(1));
    ASSERT_OK(Fill(absl::StrCat(i), kRows)) << i;
    EXPECT_LE(budget_.used(), budget_.limit() * 3 / 4 + (1 << 16));
  }
  EXPECT_GT(Spilled().disk_bytes, 2 * budget_.limit());
  EXPECT_EQ(Spilled().disk_bytes, disk_->bytes());
  EXPECT_GT(Spilled().samples, kSamples / 2);
  EXPECT_EQ(store_->GetTotals().stored_bytes + store_->GetTotals().run_bytes, budget_.used());
  for (int i = 0; i < kSamples; ++i) {
    ASSERT_OK_AND_ASSIGN(const Rows rows, Read(absl::StrCat(i)));
    ASSERT_EQ(rows, ExpectedRows(TestGeometry(), {}, kRows)) << i;
  }
  EXPECT_GT(Spilled().loads, 0);
  EXPECT_LE(budget_.used(), budget_.limit() * 3 / 4 + (1 << 16));
}

TEST_F(MemorySpillTest, TheColdestSealedSamplesGoFirst) {
  ASSERT_OK(store_->Append(MakeAppend(run_, {.sample = "open", .rows = {0, 64}})));
  for (const char* sample : {"a", "b", "c"}) {
    clock_.Advance(std::chrono::seconds(1));
    ASSERT_OK(Fill(sample, kRows));
  }
  const int64_t resident = StoredBytes("a"), open = StoredBytes("open");
  clock_.Advance(std::chrono::seconds(1));
  ASSERT_OK(Read("a"));  // Now it was used more recently than the others.
  EXPECT_TRUE(store_->MakeRoom(budget_.limit() - budget_.used() + 1));
  EXPECT_EQ(StoredBytes("a"), resident);
  EXPECT_LT(StoredBytes("b"), resident / 2);
  EXPECT_EQ(StoredBytes("c"), resident);
  EXPECT_EQ(StoredBytes("open"), open);
}

TEST_F(MemorySpillTest, RoomIsMadeForWhoAsksForIt) {
  ASSERT_OK(Fill("a", kRows));
  const int64_t most = budget_.limit() - store_->GetTotals().run_bytes - (16 << 10);
  EXPECT_FALSE(budget_.Reserve(most).ok());
  EXPECT_OK(ReserveOrMakeRoom(*store_, budget_, most));
  EXPECT_THAT(ReserveOrMakeRoom(*store_, budget_, budget_.limit() + 1),
              Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_EQ(*Read("a"), ExpectedRows(TestGeometry(), {}, kRows));
}

TEST_F(MemorySpillTest, WhatEndsGivesItsDiskSpaceBack) {
  Make({.begin = 0, .end = 0, .background = false});
  const auto disk_bytes = [this] {
    EXPECT_EQ(Spilled().disk_bytes, disk_->bytes());
    return disk_->bytes();
  };
  ASSERT_OK(Fill("a", kRows));
  EXPECT_GT(disk_bytes(), 0);
  ASSERT_OK(store_->Release("run", std::nullopt, {{SampleRef{.sample = "a"}}}));
  EXPECT_EQ(disk_bytes(), 0);
  ASSERT_OK(Fill("a", kRows));
  ASSERT_OK(store_->Truncate("run", kRollout, "a", 0, std::nullopt));
  EXPECT_EQ(disk_bytes(), 0);
  ASSERT_OK(Fill("b", kRows));
  ASSERT_OK(store_->Append(MakeAppend(run_, {.sample = "b", .rows = {0, 10}, .restart_nonce = 7})));
  EXPECT_EQ(disk_bytes(), 0);
  ASSERT_OK(Fill("c", kRows));
  clock_.Advance(std::chrono::hours(2));
  EXPECT_EQ(store_->Sweep(100), 3);
  EXPECT_EQ(disk_bytes(), 0);
  ASSERT_OK(Fill("d", kRows));
  ASSERT_OK(store_->DropRun("run"));
  EXPECT_EQ(disk_bytes(), 0);
  EXPECT_EQ(budget_.used(), 0);
}

TEST_F(MemorySpillTest, AForkSharesWhatIsSpilled) {
  Make({.begin = 0, .end = 0, .background = false});
  ASSERT_OK(Fill("parent", kRows));
  const int64_t parent = disk_->bytes();
  ASSERT_OK(store_->Append(MakeAppend(run_, {.sample = "child",
                                             .rows = {2048, 2100},
                                             .seal_num_tokens = 2101,
                                             .prefix = PrefixReference{"parent", 2048, 0}})));
  EXPECT_LT(disk_->bytes(), parent * 3 / 2);
  ASSERT_OK(store_->Release("run", std::nullopt, {{SampleRef{.sample = "parent"}}}));
  EXPECT_EQ(*Read("child"), ExpectedRows(TestGeometry(), {}, 2100));
  ASSERT_OK(store_->Release("run", std::nullopt, {{SampleRef{.sample = "child"}}}));
  EXPECT_EQ(disk_->bytes(), 0);
}

TEST_F(MemorySpillTest, ASnapshotOutlivesTheStore) {
  Make({.begin = 0, .end = 0, .background = false});
  ASSERT_OK(Fill("a", kRows));
  {
    ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->Snapshot("run", kRollout, {.sample = "a"}, kAll));
    store_.reset();
    ASSERT_OK_AND_ASSIGN(const Rows rows, RowsOf(TestGeometry(), snapshot));
    EXPECT_EQ(rows, ExpectedRows(TestGeometry(), {}, kRows));
  }
  EXPECT_EQ(disk_->files(), 0u);
  EXPECT_EQ(budget_.used(), 0);
}

TEST_F(MemorySpillTest, ADamagedBlockIsLostAndTheOthersAreRead) {
  Make({.begin = 0, .end = 0, .background = false});
  ASSERT_OK(Fill("a", kRows));
  disk_->Damage(100);
  ASSERT_OK(Fill("b", kRows));
  EXPECT_THAT(Read("a"), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  EXPECT_EQ(*Read("b"), ExpectedRows(TestGeometry(), {}, kRows));
  EXPECT_EQ(Spilled().lost_blocks, 1);
  disk_->FailReads(absl::UnavailableError("too many files"));
  EXPECT_TRUE(absl::IsUnavailable(Read("b").status()));
  disk_->FailReads(absl::OkStatus());
  EXPECT_OK(Read("b"));
}

class FailingDisk : public MemorySpillTest, public ::testing::WithParamInterface<absl::StatusCode> {};

TEST_P(FailingDisk, SamplesStayInMemoryAndAppendsAreRejected) {
  disk_->FailWrites(absl::Status(GetParam(), "no"));
  int fit = 0;
  absl::Status status;
  for (; status.ok(); ++fit) status = Fill(absl::StrCat(fit), kRows);
  --fit;
  EXPECT_THAT(status, Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_GT(GetErrorDetail(status)->retry_after_ms.value_or(0), 0);
  EXPECT_GT(budget_.used(), budget_.limit() / 2);
  for (int i = 0; i < fit; ++i) EXPECT_EQ(*Read(absl::StrCat(i)), ExpectedRows(TestGeometry(), {}, kRows));
  EXPECT_EQ(disk_->bytes(), 0);
  EXPECT_GT(Spilled().write_failures, 1);
  {
    MutexLock lock(mutex_);
    EXPECT_EQ(warnings_.size(), 1u);
  }
  // Spilling continues when the disk works again.
  disk_->FailWrites(absl::OkStatus());
  ASSERT_OK(Fill(absl::StrCat(fit), kRows));
  for (int i = 0; i <= fit; ++i) EXPECT_EQ(*Read(absl::StrCat(i)), ExpectedRows(TestGeometry(), {}, kRows));
  EXPECT_GT(Spilled().samples, 0);
}

INSTANTIATE_TEST_SUITE_P(Codes, FailingDisk,
                         ::testing::Values(absl::StatusCode::kResourceExhausted, absl::StatusCode::kUnavailable),
                         [](const auto& info) {
                           return info.param == absl::StatusCode::kUnavailable ? "broken" : "full";
                         });

TEST_F(MemorySpillTest, ItsOwnBudgetIsABound) {
  Make({.budget_bytes = 1 << 18, .segment_bytes = 1 << 14, .background = false});
  int fit = 0;
  for (; Fill(absl::StrCat(fit), kRows).ok(); ++fit)
    clock_.Advance(std::chrono::seconds(1));  // So the earliest are the least recently used.
  EXPECT_LE(disk_->bytes(), 1 << 18);
  EXPECT_GT(disk_->bytes(), 1 << 17);
  for (int i = 0; i < fit; ++i) EXPECT_EQ(*Read(absl::StrCat(i)), ExpectedRows(TestGeometry(), {}, kRows));
  const int64_t full = disk_->bytes();
  for (int i = 0; i < 4; ++i) {
    ASSERT_OK(store_->Release("run", std::nullopt, {{SampleRef{.sample = absl::StrCat(i)}}}));
  }
  EXPECT_LT(disk_->bytes(), full);
  const int64_t samples = Spilled().samples;
  for (int i = 0; i < 3; ++i) EXPECT_OK(Fill(absl::StrCat("more", i), kRows));
  EXPECT_GT(Spilled().samples, samples);
}

// Random operations, on a disk that is sometimes full, give the same results as a store without a disk.
TEST_F(MemorySpillTest, ShowsWhatAStoreWithoutADiskShows) {
  ByteBudget plenty(int64_t{1} << 30);
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    Make({.segment_bytes = 1 << 14, .begin = 0.1 * (round % 3), .end = 0, .background = false});
    const auto plain = NewMemoryStore({.clock = &clock_, .budget = &plenty});
    ASSERT_OK(plain->OpenRun("run", &TestGeometry(), run_.options));
    for (int step = 0; step < 150; ++step) {
      const std::string sample = absl::StrCat("s", random() % 6);
      clock_.Advance(std::chrono::seconds(random() % 100));
      const auto state = plain->Stat("run", kRollout, {.sample = sample});
      const int64_t rows = state.ok() ? state->committed_rows : 0, revision = state.ok() ? state->revision : 0;
      if (random() % 10 == 0) disk_->FailWrites(random() % 2 ? absl::OkStatus() : absl::ResourceExhaustedError("full"));
      switch (random() % 8) {
        case 0:
          for (Store* store : {store_.get(), plain.get()})
            store->Release("run", std::nullopt, {{SampleRef{sample}}}).IgnoreError();
          break;
        case 1: {
          const int64_t left = static_cast<int64_t>(random() % (rows + 1));
          for (Store* store : {store_.get(), plain.get()}) {
            EXPECT_EQ(store->Truncate("run", kRollout, sample, left, std::nullopt).ok(), state.ok());
          }
          break;
        }
        case 2: {
          const int64_t prefix = static_cast<int64_t>(random() % (rows + 1));
          const AppendSpec fork{.sample = absl::StrCat("f", step),
                                .rows = {prefix, prefix + 20},
                                .seal_num_tokens = prefix + 21,
                                .prefix = PrefixReference{sample, prefix, revision}};
          EXPECT_EQ(store_->Append(MakeAppend(run_, fork)).ok(), plain->Append(MakeAppend(run_, fork)).ok());
          break;
        }
        default: {
          AppendSpec next{.sample = sample, .rows = {rows, rows + 1 + static_cast<int64_t>(random() % 70)}};
          next.revision = revision;
          if (random() % 3 == 0) next.seal_num_tokens = next.rows.end + 1;
          EXPECT_EQ(store_->Append(MakeAppend(run_, next)).ok(), plain->Append(MakeAppend(run_, next)).ok());
        }
      }
    }
    const auto shown = [](Store& store) {
      std::map<std::string, Rows> all;
      const auto page = store.List("run", kRollout, std::nullopt, 1000, "");
      for (const SampleState& state : page->samples) {
        const auto snapshot = store.Snapshot("run", kRollout, {.sample = state.sample}, kAll);
        all[state.sample] = *RowsOf(TestGeometry(), *snapshot);
      }
      return all;
    };
    ASSERT_EQ(shown(*store_), shown(*plain)) << round;
    EXPECT_EQ(store_->GetTotals().stored_bytes + store_->GetTotals().run_bytes, budget_.used());
    EXPECT_LE(Spilled().disk_bytes, disk_->bytes());  // A failed write may have left a part of its bytes.
    ASSERT_OK(store_->DropRun("run"));
    EXPECT_EQ(budget_.used(), 0);
    EXPECT_EQ(disk_->bytes(), 0);
  }
}

// Threads that write, read and remove samples, while the spiller thread runs.
TEST_F(MemorySpillTest, EverythingAtOnce) {
  Make({.segment_bytes = 1 << 15, .begin = 0.02, .end = 0.01, .background = true});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(thread);
      for (int i = 0; i < 150; ++i) {
        const std::string own = absl::StrCat(thread, "/", i);
        const int64_t rows = 1 + random() % 200;
        while (!Fill(own, rows).ok()) std::this_thread::yield();
        const auto written = Read(own);
        if (written.ok()) {
          EXPECT_EQ(*written, ExpectedRows(TestGeometry(), {}, rows));
        }
        const std::string other = absl::StrCat(random() % 4, "/", random() % (i + 1));
        const auto seen = Read(other);
        if (seen.ok()) {
          EXPECT_EQ(*seen, ExpectedRows(TestGeometry(), {}, static_cast<int64_t>(seen->size())));
        }
        const std::string old = absl::StrCat(thread, "/", i - 8);
        store_->Release("run", std::nullopt, {{SampleRef{old}, SampleRef{other}}}).IgnoreError();
        if (random() % 5 == 0) store_->Truncate("run", kRollout, own, rows / 2, std::nullopt).IgnoreError();
        if (random() % 5 == 0) store_->MakeRoom(budget_.limit() / 2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(Spilled().samples, 0);
  EXPECT_EQ(Spilled().lost_blocks, 0);
  ASSERT_OK(store_->DropRun("run"));
  store_.reset();
  EXPECT_EQ(budget_.used(), 0);
  EXPECT_EQ(disk_->files(), 0u);
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(MemorySpill, StoreConformance,
                         ::testing::Values(StoreFactory{
                             "memory_spill",
                             [](ByteBudget& budget, const Clock& clock, HandleFunction handle_of) {
                               static ScratchDirectory directory;
                               static int number = 0;
                               const auto disk = OpenSpillDirectory(absl::StrCat(directory.path(), "/", number++));
                               EXPECT_OK(disk);
                               return NewMemoryStore(
                                   {.clock = &clock,
                                    .budget = &budget,
                                    .handle_of = std::move(handle_of),
                                    .spill = {.disk = *disk, .begin = 0, .end = 0, .background = false}});
                             }}),
                         FactoryName);

}  // namespace routing_replay::testing
