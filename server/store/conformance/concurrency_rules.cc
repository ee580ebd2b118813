// Many threads at once, for ThreadSanitizer.
#include <atomic>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/store/conformance/conformance.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr auto kRollout = Producer::kRollout;
constexpr int kThreads = 4;

void RunThreads(const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

TEST_P(StoreConformance, WritersOfOneSampleAgree) {
  std::atomic<int64_t> opened{0};
  RunThreads([&](int thread) {
    std::mt19937 random(thread);
    int64_t committed = 0;
    while (committed < 200) {
      const int64_t end = std::min<int64_t>(200, committed + 1 + random() % 20);
      const auto ack = Append({.rows = {committed, end}, .token_check_start = true});
      ASSERT_OK(ack);
      if (committed == 0 && ack->trimmed_rows == 0) ++opened;
      committed = ack->committed_rows;
    }
  });
  EXPECT_EQ(opened, 1);
  ASSERT_OK(store_->Seal("run", kRollout, "s", 201, 0));
  EXPECT_EQ(Read("s"), ExpectedRows(geometry(), {}, 200));
  EXPECT_EQ(Used(), Charged(Stat("s").stored_bytes));
}

// While others append to, truncate and restart a sample, a reader always sees a prefix of one of the two trajectories,
// under one revision.
TEST_P(StoreConformance, ReadersSeeWholeStates) {
  const Trajectory incarnations[] = {{1, 1}, {2, 2}};
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    std::mt19937 random(5);
    for (int i = 0; i < 300; ++i) {
      const auto state = store_->Stat("run", kRollout, {.sample = "s"});
      const int64_t revision = state.ok() ? state->revision : 0, rows = state.ok() ? state->committed_rows : 0;
      const Trajectory& incarnation = incarnations[revision % 2];
      if (rows > 120) {
        EXPECT_OK(Append({.from = incarnations[(revision + 1) % 2],
                          .rows = {0, 10},
                          .revision = revision,
                          .restart_nonce = 1000u + i}));
      } else {
        EXPECT_OK(Append({.from = incarnation,
                          .rows = {rows, rows + 1 + static_cast<int64_t>(random() % 30)},
                          .revision = revision}));
      }
    }
    stop = true;
  });
  const std::vector<RowRange> all{{0, kMaxRows}};
  while (!stop) {
    const auto snapshot = store_->Snapshot("run", kRollout, {.sample = "s"}, all);
    if (!snapshot.ok()) continue;
    const auto rows = RowsOf(geometry(), *snapshot);
    ASSERT_OK(rows);
    EXPECT_EQ(*rows,
              ExpectedRows(geometry(), incarnations[snapshot->state.revision % 2], snapshot->state.committed_rows));
  }
  writer.join();
}

TEST_P(StoreConformance, EverythingAtOnceLeavesNothingBehind) {
  ReopenRun({.ttl = std::chrono::hours(1), .block_rows = kWindow});
  RunThreads([&](int thread) {
    std::mt19937 random(thread);
    for (int i = 0; i < 400; ++i) {
      const std::string sample = absl::StrCat("s", random() % 6);
      const std::vector<SampleRef> refs{{.sample = sample}};
      const std::vector<RowRange> rows{{0, 50}};
      const auto watch = store_->WatchSample("run", kRollout, refs[0], [] {});
      switch (random() % 9) {
        case 0:
          (void)store_->Truncate("run", kRollout, sample, 0, std::nullopt);
          break;
        case 1:
          (void)store_->Release("run", std::nullopt, refs);
          break;
        case 2:
          (void)store_->List("run", kRollout, GroupRange{0, 2}, 3, "");
          break;
        case 3:
          (void)Append(
              {.sample = sample, .rows = {9, 20}, .prefix = PrefixReference{absl::StrCat("s", random() % 6), 9, 0}});
          break;
        case 4:
          clock_.Advance(std::chrono::minutes(1));
          (void)store_->Sweep(2);
          break;
        case 5:
          if (const auto snapshot = store_->Snapshot("run", kRollout, refs[0], rows); snapshot.ok()) {
            EXPECT_OK(RowsOf(TestGeometry(), *snapshot));
          }
          break;
        case 6:
          (void)store_->Stat("run", kRollout, refs[0]);
          (void)store_->ListRuns();
          break;
        default:
          (void)Append(
              {.sample = sample, .rows = {0, 10 + static_cast<int64_t>(random() % 60)}, .group = random() % 4});
      }
    }
  });
  ASSERT_OK(store_->DropRun("run"));
  EXPECT_EQ(store_->GetTotals().samples, 0);
  EXPECT_EQ(Used(), 0);
}

TEST_P(StoreConformance, DroppingARunUnderWritersIsClean) {
  for (int round = 0; round < 10; ++round) {
    RunThreads([&](int thread) {
      for (int i = 0; i < 20; ++i) {
        if (thread == 0 && i == 10) {
          EXPECT_OK(store_->DropRun("run"));
          continue;
        }
        const auto ack = Append({.sample = absl::StrCat("s", i), .rows = {0, 10}});
        if (!ack.ok()) {
          EXPECT_THAT(ack, Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
        }
      }
    });
    EXPECT_EQ(Used(), 0);
    run_ = OpenRun("run", {.block_rows = kWindow});
  }
}

TEST_P(StoreConformance, AWatchThatEndsWhileItFiresIsSafe) {
  Fill("s", 1);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int64_t row = 1; !stop; ++row) (void)Append({.rows = {row, row + 1}, .token_ids = false});
  });
  for (int i = 0; i < 300; ++i) {
    auto value = std::make_unique<std::atomic<int>>(0);
    auto watch = *store_->WatchSample("run", kRollout, {.sample = "s"}, [&value] { ++*value; });
    if (i % 3 == 0) std::this_thread::yield();
    watch.reset();
    EXPECT_LE(*value, 1);
    value.reset();  // A callback that still ran would touch freed memory.
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace routing_replay::testing
