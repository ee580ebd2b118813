// Cases that exist only in the Redis store: changes by other servers in between, and lost answers.
#include <atomic>
#include <thread>

#include "server/store/redis/testing/redis_failure_fixture.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr auto kRollout = Producer::kRollout;
constexpr Trajectory kOther{.tokens = 2, .routes = 2};

// The first server's cached manifest is stale, so Redis rejects its commit. The server reads the manifest, tries again,
// and leaves no chunks of the rejected commit behind.
TEST_F(RedisFailureTest, AnAppendOnAnOldGuessIsTriedAgainAndLeavesNothing) {
  ASSERT_OK(Append(*one_, {.rows = {0, 32}}));
  ASSERT_OK(Append(*other_, {.rows = {32, 40}}));
  // The rows fill whole windows and a part of one. Their blocks must still be available for the second attempt.
  const auto ack = one_->Append(MakeAppend(run_, {.rows = {32, 140}}));
  ASSERT_OK(ack);
  EXPECT_EQ(ack->committed_rows, 140);
  EXPECT_EQ(ack->trimmed_rows, 8);
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 140));
  EXPECT_EQ(ChunksThatStay(), 5);
  // A stale manifest alone never decides. By its stale manifest, the first server would reject rows 150 to 160 as a
  // gap, and accept rows 0 to 20 of an old revision.
  ASSERT_OK(Append(*other_, {.rows = {140, 150}}));
  ASSERT_OK(Append(*one_, {.rows = {150, 160}}));
  ASSERT_OK(other_->Truncate("run", kRollout, "s", 20, std::nullopt));
  EXPECT_THAT(Append(*one_, {.rows = {0, 20}}), Fails(absl::StatusCode::kFailedPrecondition, Reason::kOldRevision));
  EXPECT_OK(Append(*one_, {.rows = {20, 160}, .revision = 1}));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 160));
}

// The sample exists, but this server has not seen it yet.
TEST_F(RedisFailureTest, ASampleThatAnotherServerBeganIsFound) {
  ASSERT_OK(Append(*other_, {.rows = {0, 70}}));
  const size_t keys = Keys().size();
  const auto ack = one_->Append(MakeAppend(run_, {.rows = {0, 64}}));
  ASSERT_OK(ack);
  EXPECT_EQ(ack->trimmed_rows, 64);
  EXPECT_EQ(ack->committed_rows, 70);
  EXPECT_EQ(Keys().size(), keys);
  EXPECT_THAT(Append(*NewStore(), {.from = kOther, .rows = {0, 64}}),
              Fails(absl::StatusCode::kAlreadyExists, Reason::kOtherTokens));
  EXPECT_EQ(Keys().size(), keys);
}

TEST_F(RedisFailureTest, AnAppendToARunThatAnotherServerDroppedIsRejected) {
  ASSERT_OK(Append(*one_, {.rows = {0, 32}}));
  ASSERT_OK(other_->DropRun("run"));
  EXPECT_THAT(Append(*one_, {.sample = "t", .rows = {0, 32}}), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  EXPECT_EQ(ChunksThatStay(), 0);
  EXPECT_EQ(Keys("}:m").size(), 0u);
  EXPECT_THAT(Append(*one_, {.rows = {32, 64}}), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  run_ = *other_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  EXPECT_OK(Append(*one_, {.from = kOther, .rows = {0, 64}}));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), kOther, 64));
}

// The commit was executed, its answer was lost, and another server changed the sample. The retried commit is rejected,
// but its chunks are in use and must not be deleted.
TEST_F(RedisFailureTest, ACommitThatIsSentAgainKeepsItsChunks) {
  const auto lossy = std::make_shared<LossyCluster>(Connect());
  const std::unique_ptr<Store> store = NewStore(lossy);
  lossy->meanwhile = [&] { ASSERT_OK(Append(*other_, {.rows = {32, 64}})); };
  const auto ack = store->Append(MakeAppend(run_, {.rows = {0, 32}}));
  ASSERT_OK(ack);
  EXPECT_EQ(ack->committed_rows, 64);
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 64));
  lossy->meanwhile = [] {};  // Nothing changes before the same commit is sent again.
  ASSERT_OK(Append(*store, {.rows = {64, 96}}));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 96));
  EXPECT_EQ(other_->ListRuns()->at(0).committed_rows, 96);
}

// The answer to the append's commit is lost. Meanwhile the other server releases the sample, after which its chunks
// expire within a minute. The repeated commit makes the sample again, so it must also make the chunks permanent again.
TEST_F(RedisFailureTest, ACommitThatIsSentAgainAfterAReleaseGivesItsChunksTime) {
  const auto lossy = std::make_shared<LossyCluster>(Connect());
  const std::unique_ptr<Store> store = NewStore(lossy);
  lossy->meanwhile = [&] { ASSERT_OK(Release(*other_)); };
  ASSERT_OK(Append(*store, {.rows = {0, 100}, .seal_num_tokens = 101}));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 100));
  EXPECT_EQ(ChunksThatStay(), 4);
  EXPECT_EQ(other_->ListRuns()->at(0).committed_rows, 100);
}

// A truncation whose answer is lost must not be sent again: it would remove rows that were acknowledged after it.
TEST_F(RedisFailureTest, ATruncationWhoseAnswerIsLostIsMadeOnce) {
  const auto lossy = std::make_shared<LossyCluster>(Connect());
  const std::unique_ptr<Store> store = NewStore(lossy);
  ASSERT_OK(Append(*store, {.rows = {0, 70}}));
  lossy->meanwhile = [&] { ASSERT_OK(Append(*other_, {.rows = {20, 64}, .revision = 1})); };
  EXPECT_EQ(store->Truncate("run", kRollout, "s", 20, 0).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Stat(*store)->committed_rows, 64);
  EXPECT_EQ(Stat(*store)->revision, 1);
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 64));
}

TEST_F(RedisFailureTest, ServersDoNotInterleave) {
  std::atomic<int64_t> conflicts{0};
  const auto write = [&](Store& store, int seed) {
    std::mt19937 random(seed);
    for (int64_t committed = 0; committed < 300;) {
      const int64_t end = std::min<int64_t>(300, committed + 1 + random() % 20);
      const auto ack = store.Append(MakeAppend(run_, {.rows = {committed, end}, .token_check_start = true}));
      ASSERT_OK(ack);
      conflicts += ack->conflicting_rows;
      committed = ack->committed_rows;
    }
  };
  std::thread first([&] { write(*one_, 1); }), second([&] { write(*other_, 2); });
  first.join();
  second.join();
  EXPECT_EQ(conflicts, 0);
  ASSERT_OK(one_->Seal("run", kRollout, "s", 301, 0));
  EXPECT_EQ(*Read(*NewStore()), ExpectedRows(TestGeometry(), {}, 300));
}

TEST_F(RedisFailureTest, ASealThroughAnotherServerWakesReaders) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  double worst_ms = 0;
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> told{false};
    const auto watch = other_->WatchSample("run", kRollout, {.sample = "s"}, [&] { told = true; });
    ASSERT_OK(watch);
    const auto start = std::chrono::steady_clock::now();
    ASSERT_OK(one_->Append(MakeAppend(run_, {.rows = {40 + round, 41 + round}})));
    while (!told && std::chrono::steady_clock::now() < start + std::chrono::seconds(10)) std::this_thread::yield();
    EXPECT_TRUE(told);
    worst_ms =
        std::max(worst_ms, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::printf("a change through another server was heard after %.2f ms at most\n", worst_ms);
}

// A change by this server makes the other server's snapshot stale.
TEST_F(RedisFailureTest, AnOldLookCanStillBeReadForSomeTime) {
  ASSERT_OK(Append(*one_, {.rows = {0, 20}}));
  const std::vector<RowRange> all{{0, kMaxRows}};
  ASSERT_OK_AND_ASSIGN(const SampleSnapshot old, other_->Snapshot("run", kRollout, {.sample = "s"}, all));
  ASSERT_OK(Append(*one_, {.rows = {20, 64}}));  // Merges and replaces the pieces that the first look returned.
  EXPECT_EQ(*RowsOf(TestGeometry(), old), ExpectedRows(TestGeometry(), {}, 20));
  for (const std::string& key : Chunks()) {
    if (Ask(RedisCommand({"PTTL", key})).integer >= 0) Ask(RedisCommand({"DEL", key}));
  }
  EXPECT_EQ(RowsOf(TestGeometry(), old).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 64));
}

}  // namespace
}  // namespace routing_replay::testing
