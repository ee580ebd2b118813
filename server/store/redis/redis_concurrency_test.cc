// What only a store in Redis has to stand: other servers that come in between, and answers that are lost.
#include <atomic>
#include <thread>

#include "server/store/redis/redis_failure_fixture.h"
#include "server/store/redis/redis_keys.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr auto kRollout = Producer::kRollout;
constexpr Trajectory kOther{.tokens = 2, .routes = 2};

// A server that goes by what it knew is refused, and must leave as little behind as one that looked.
TEST_F(RedisFailureTest, AnAppendOnAnOldGuessIsTriedAgainAndLeavesNothing) {
  ASSERT_OK(Append(*one_, {.rows = {0, 32}}));
  ASSERT_OK(Append(*other_, {.rows = {32, 40}}));
  // Whole windows and a part: what was taken for the first try must be there for the second.
  const auto ack = one_->Append(MakeAppend(run_, {.rows = {32, 140}}));
  ASSERT_OK(ack);
  EXPECT_EQ(ack->committed_rows, 140);
  EXPECT_EQ(ack->trimmed_rows, 8);
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 140));
  int64_t lasting = 0;
  for (const std::string& key : Keys(":1:")) lasting += Ask(RedisCommand({"PTTL", key})).integer > 60000;
  EXPECT_EQ(lasting, 5);
  // Nobody is refused, or answered, on a guess alone.
  ASSERT_OK(Append(*other_, {.rows = {140, 150}}));
  ASSERT_OK(Append(*one_, {.rows = {150, 160}}));
  ASSERT_OK(other_->Truncate("run", kRollout, "s", 20, std::nullopt));
  EXPECT_THAT(Append(*one_, {.rows = {0, 20}}), Fails(absl::StatusCode::kFailedPrecondition, Reason::kOldRevision));
  EXPECT_OK(Append(*one_, {.rows = {20, 160}, .revision = 1}));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 160));
}

// The sample is new to this server, but not new.
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

TEST_F(RedisFailureTest, AnAppendToARunThatAnotherServerDroppedIsRefused) {
  ASSERT_OK(Append(*one_, {.rows = {0, 32}}));
  ASSERT_OK(other_->DropRun("run"));
  EXPECT_THAT(Append(*one_, {.sample = "t", .rows = {0, 32}}), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  EXPECT_EQ(Keys(":1:").size(), 1u);
  EXPECT_EQ(Keys(":m").size(), 1u);
  EXPECT_THAT(Append(*one_, {.rows = {32, 64}}), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  run_ = *other_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  EXPECT_OK(Append(*one_, {.from = kOther, .rows = {0, 64}}));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), kOther, 64));
}

// The commit was carried out, its answer lost, and another server went on: sent again it is told that the sample has
// changed, but its chunks are shown.
TEST_F(RedisFailureTest, ACommitThatIsSentAgainKeepsItsChunks) {
  const auto lossy = std::make_shared<LossyCluster>(Connect());
  const std::unique_ptr<Store> store = NewStore(lossy);
  lossy->meanwhile = [&] { ASSERT_OK(Append(*other_, {.rows = {32, 64}})); };
  const auto ack = store->Append(MakeAppend(run_, {.rows = {0, 32}}));
  ASSERT_OK(ack);
  EXPECT_EQ(ack->committed_rows, 64);
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 64));
  lossy->meanwhile = [] {};  // Nothing happens in between: it is the same commit.
  ASSERT_OK(Append(*store, {.rows = {64, 96}}));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 96));
  EXPECT_EQ(other_->ListRuns()->at(0).committed_rows, 96);
}

TEST_F(RedisFailureTest, ACommitThatIsSentAgainToAClusterKeepsItsChunks) {
  const auto lossy = std::make_shared<LossyCluster>(Connect(), /*apart=*/true);
  const std::unique_ptr<Store> store = NewStore(lossy), other = NewStoreApart();
  for (int64_t begin = 0; begin < 256; begin += 64) {
    lossy->meanwhile = [&] { ASSERT_OK(Append(*other, {.rows = {begin + 32, begin + 64}})); };
    const auto ack = store->Append(MakeAppend(run_, {.rows = {begin, begin + 32}}));
    ASSERT_OK(ack);
    EXPECT_EQ(ack->committed_rows, begin + 64);
    EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, begin + 64));
  }
  EXPECT_EQ(other->ListRuns()->at(0).committed_rows, 256);
}

// The sample is released in between, and made again over chunks that the release gave little time.
TEST_F(RedisFailureTest, ACommitThatIsSentAgainAfterAReleaseGivesItsChunksTime) {
  const auto lossy = std::make_shared<LossyCluster>(Connect());
  const std::unique_ptr<Store> store = NewStore(lossy);
  lossy->meanwhile = [&] { ASSERT_OK(Release(*other_)); };
  ASSERT_OK(Append(*store, {.rows = {0, 100}, .seal_num_tokens = 101}));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 100));
  EXPECT_TRUE(ChunksLast());
  EXPECT_EQ(other_->ListRuns()->at(0).committed_rows, 100);
}

// Rows that were acknowledged after it stay, and who expects a revision is not refused for what it did itself.
TEST_F(RedisFailureTest, ATruncationWhoseAnswerIsLostIsMadeOnce) {
  const auto lossy = std::make_shared<LossyCluster>(Connect());
  const std::unique_ptr<Store> store = NewStore(lossy);
  int64_t revision = 0;
  for (const std::optional<int64_t> expected : {std::optional<int64_t>(), std::optional<int64_t>(1)}) {
    ASSERT_OK(Append(*store, {.rows = {0, 70}, .revision = revision}));
    ++revision;
    lossy->meanwhile = [&] { ASSERT_OK(Append(*other_, {.rows = {20, 64}, .revision = revision})); };
    const auto state = store->Truncate("run", kRollout, "s", 20, expected);
    ASSERT_OK(state);
    EXPECT_EQ(state->committed_rows, 64);
    EXPECT_EQ(state->revision, revision);
    EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 64));
  }
  // Another truncation hides whether it was made: it is not made again.
  lossy->meanwhile = [&] { ASSERT_OK(other_->Truncate("run", kRollout, "s", 10, std::nullopt)); };
  EXPECT_EQ(store->Truncate("run", kRollout, "s", 20, std::nullopt).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Stat(*store)->committed_rows, 10);
}

// A user of Redis 7 has no right to any channel unless it is given one.
TEST_F(RedisFailureTest, ChangesAreMadeWithoutTheRightToChannels) {
  Ask(RedisCommand({"ACL", "SETUSER", "default", "resetchannels"}));
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 40));
  ASSERT_OK(Release(*one_));
  EXPECT_THAT(Stat(*other_), Fails(absl::StatusCode::kNotFound, Reason::kNoSample));
  EXPECT_EQ(one_->ListRuns()->at(0).samples, 0);
  EXPECT_FALSE(ChunksLast());
  ASSERT_OK(one_->DropRun("run"));
}

// Everything of a sample but its entry in the index, which may lie on another server.
TEST_F(RedisFailureTest, ASampleThatIsGoneWholeIsLost) {
  const std::unique_ptr<Store> apart = NewStoreApart(), other_apart = NewStoreApart();
  const std::pair<Store*, Store*> pairs[] = {{one_.get(), other_.get()}, {apart.get(), other_apart.get()}};
  for (const auto& [writer, other] : pairs) {
    ASSERT_OK(Append(*writer, {.rows = {0, 40}, .group = 3}));
    Ask(RedisCommand({"DEL", Manifest()}));
    const auto lost = Stat(*other);
    EXPECT_THAT(lost, Fails(absl::StatusCode::kDataLoss, Reason::kNotCommitted));
    EXPECT_EQ(GetErrorDetail(lost.status())->missing_rows, (std::vector<RowRange>{{0, 40}}));
    EXPECT_EQ(GetErrorDetail(lost.status())->revision, 1);
    const std::unique_ptr<Store> third = NewStore();
    for (Store* store : {writer, other, third.get()}) {
      const auto state = Stat(*store);
      ASSERT_OK(state);
      EXPECT_EQ(state->committed_rows, 0);
      EXPECT_EQ(state->revision, 1);
      EXPECT_EQ(state->lost_end, 40);
      EXPECT_EQ(state->group, 3);
      EXPECT_THAT(Append(*store, {.rows = {0, 40}}),
                  Fails(absl::StatusCode::kFailedPrecondition, Reason::kOldRevision));
    }
    ASSERT_OK(Append(*other, {.from = kOther, .rows = {0, 40}, .revision = 1}));
    EXPECT_EQ(*Read(*writer), ExpectedRows(TestGeometry(), kOther, 40));
    EXPECT_EQ(writer->ListRuns()->at(0).committed_rows, 40);
    ASSERT_OK(Release(*other));
    EXPECT_THAT(Stat(*writer), Fails(absl::StatusCode::kNotFound, Reason::kNoSample));
    ASSERT_OK(Append(*writer, {.rows = {0, 20}}));
    ASSERT_OK(Release(*writer));
    EXPECT_EQ(writer->ListRuns()->at(0).samples, 0);
  }
}

// An append at a server that takes the sample for a new one, and a list.
TEST_F(RedisFailureTest, WhoeverComesFirstFindsThatASampleIsGone) {
  const std::unique_ptr<Store> apart = NewStoreApart();
  for (Store* store : {other_.get(), apart.get()}) {
    ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
    Ask(RedisCommand({"DEL", Manifest()}));
    EXPECT_THAT(Append(*store, {.rows = {0, 70}}), Fails(absl::StatusCode::kDataLoss, Reason::kNotCommitted));
    EXPECT_OK(Append(*store, {.rows = {0, 70}, .revision = 1}));
    Ask(RedisCommand({"DEL", Manifest()}));
    const auto page = store->List("run", kRollout, std::nullopt, 0, "");
    ASSERT_OK(page);
    ASSERT_EQ(page->samples.size(), 1u);
    EXPECT_EQ(page->samples[0].revision, 2);
    EXPECT_EQ(page->samples[0].lost_end, 70);
    ASSERT_OK(Release(*one_));
    ASSERT_OK(Append(*store, {.rows = {0, 70}}));
    ASSERT_OK(Release(*one_));
  }
}

// The server that had acknowledged the rest died with the master that lost it; the entry, on another master, still
// tells.
TEST_F(RedisFailureTest, AListFindsWhatNoServerRemembers) {
  const std::unique_ptr<Store> apart = NewStoreApart(), later = NewStoreApart();
  for (const bool seals : {false, true}) {
    const std::string sample = seals ? "sealed" : "open";
    const int64_t more = seals ? 40 : 70;
    ASSERT_OK(Append(*apart, {.sample = sample, .rows = {0, 40}}));
    const std::string key = Manifest();
    const std::string before = Ask(RedisCommand({"DUMP", key})).text;
    ASSERT_OK(Append(
        *apart,
        {.sample = sample, .rows = {40, more}, .seal_num_tokens = seals ? std::optional(more + 1) : std::nullopt}));
    Ask(RedisCommand({"RESTORE", key, "0", before, "REPLACE"}));
    EXPECT_EQ(Stat(*later, sample)->revision, 0);  // Nobody looks at the entry for it.
    const auto page = later->List("run", kRollout, std::nullopt, 0, "");
    ASSERT_OK(page);
    const SampleState& state = page->samples.front();
    EXPECT_EQ(state.sample, sample);
    EXPECT_EQ(state.revision, 1);
    EXPECT_EQ(state.committed_rows, 40);
    EXPECT_FALSE(state.sealed());
    if (!seals) {
      EXPECT_EQ(state.lost_end, 70);
    }
    EXPECT_THAT(Append(*NewStoreApart(), {.sample = sample, .rows = {40, 80}}),
                Fails(absl::StatusCode::kFailedPrecondition, Reason::kOldRevision));
    EXPECT_EQ(later->List("run", kRollout, std::nullopt, 0, "")->samples.front().revision, 1);
    ASSERT_OK(Release(*later, sample));
  }
}

// Redis ends what no server has swept: that is no loss.
TEST_F(RedisFailureTest, ASampleThatHasExpiredIsNotLost) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  clock_.Advance(std::chrono::hours(11));
  Ask(RedisCommand({"DEL", Manifest()}));
  EXPECT_THAT(Stat(*other_), Fails(absl::StatusCode::kNotFound, Reason::kNoSample));
  EXPECT_OK(Append(*other_, {.from = kOther, .rows = {0, 20}}));
  EXPECT_EQ(*Read(*one_), ExpectedRows(TestGeometry(), kOther, 20));
}

// The note of a change that comes after the sample's end.
TEST_F(RedisFailureTest, ASampleThatWasReleasedIsNotLost) {
  const auto lossy = std::make_shared<LossyCluster>(Connect(), /*apart=*/true);
  const std::unique_ptr<Store> store = NewStore(lossy), other = NewStoreApart();
  lossy->before = &redis_scripts::PutEntry();
  for (const int64_t rows : {20, 40}) {
    lossy->first = [&] { ASSERT_OK(Release(*other)); };
    ASSERT_OK(Append(*store, {.rows = {0, rows}}));
    EXPECT_THAT(Stat(*other), Fails(absl::StatusCode::kNotFound, Reason::kNoSample));
  }
  EXPECT_TRUE(other->List("run", kRollout, std::nullopt, 0, "")->samples.empty());
  EXPECT_EQ(other->GetTotals().samples, 0);
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

// A change through this server, after which the other one's own look is old.
TEST_F(RedisFailureTest, AnOldLookCanStillBeReadForSomeTime) {
  ASSERT_OK(Append(*one_, {.rows = {0, 20}}));
  const std::vector<RowRange> all{{0, kMaxRows}};
  ASSERT_OK_AND_ASSIGN(const SampleSnapshot old, other_->Snapshot("run", kRollout, {.sample = "s"}, all));
  ASSERT_OK(Append(*one_, {.rows = {20, 64}}));  // Merges and replaces what the look shows.
  EXPECT_EQ(*RowsOf(TestGeometry(), old), ExpectedRows(TestGeometry(), {}, 20));
  for (const std::string& key : Keys(":1:")) {
    if (Ask(RedisCommand({"PTTL", key})).integer <= 60000) Ask(RedisCommand({"DEL", key}));
  }
  EXPECT_EQ(RowsOf(TestGeometry(), old).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 64));
}

}  // namespace
}  // namespace routing_replay::testing
