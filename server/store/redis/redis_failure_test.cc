// Cases that exist only in the Redis store: lost keys, a Redis that restarts with less data, no memory.
#include <atomic>
#include <csignal>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "server/store/redis/testing/redis_failure_fixture.h"
#include "server/store/store_time.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr auto kRollout = Producer::kRollout;
constexpr Trajectory kOther{.tokens = 2, .routes = 2};

TEST_F(RedisFailureTest, ALostChunkIsReportedAsLost) {
  ASSERT_OK(Append(*one_, {.rows = {0, 100}}));
  const std::vector<std::string> chunks = Chunks();
  ASSERT_EQ(chunks.size(), 4u);
  Ask(RedisCommand({"DEL", chunks[0]}));
  for (Store* store : {one_.get(), other_.get()}) {
    const absl::Status lost = Read(*store).status();
    EXPECT_THAT(lost, Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
    EXPECT_EQ(GetErrorDetail(lost)->sample, "s");
    EXPECT_TRUE(GetErrorDetail(lost)->row.has_value());
  }
  // The sample with the lost chunk can still be released.
  const std::vector<SampleRef> refs{{.sample = "s"}};
  EXPECT_EQ(other_->Release("run", std::nullopt, refs)->samples, 1);
}

TEST_F(RedisFailureTest, DamagedBytesAreReportedAsLost) {
  ASSERT_OK(Append(*one_, {.rows = {0, 20}}));
  const std::vector<std::string> chunks = Chunks();
  ASSERT_EQ(chunks.size(), 1u);
  std::string value = Ask(RedisCommand({"GET", chunks[0]})).text;
  for (const size_t at : {size_t{1}, value.size() - 1}) {  // A CRC, and a byte that it covers.
    std::string damaged = value;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    Ask(RedisCommand({"SET", chunks[0], damaged}));
    EXPECT_EQ(Read(*other_).status().code(), absl::StatusCode::kDataLoss);
  }
  Ask(RedisCommand({"SET", chunks[0], value.substr(1)}));
  EXPECT_EQ(Read(*other_).status().code(), absl::StatusCode::kDataLoss);
  Ask(RedisCommand({"SET", chunks[0], value}));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 20));
}

TEST_F(RedisFailureTest, ADamagedManifestIsReportedAsLost) {
  ASSERT_OK(Append(*one_, {.rows = {0, 20}}));
  Ask(RedisCommand({"HSET", Manifest(), "w0", "damaged"}));
  EXPECT_THAT(other_->Stat("run", kRollout, {.sample = "s"}), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  const std::vector<SampleRef> refs{{.sample = "s"}};
  EXPECT_EQ(other_->Release("run", std::nullopt, refs)->samples, 1);
  EXPECT_OK(Append(*one_, {.from = kOther, .rows = {0, 5}}));
}

TEST_F(RedisFailureTest, SamplesThatAreAskedForTogetherTakeFewLooks) {
  const auto cluster = std::make_shared<LossyCluster>(Connect());
  const auto store = NewStore(cluster);
  constexpr int kSamples = 300;
  std::vector<SampleRef> refs;
  for (int i = 0; i < kSamples; ++i) {
    refs.push_back({.sample = absl::StrCat(i)});
    refs.push_back({.sample = absl::StrCat("none", i)});
    ASSERT_OK(Append(i % 2 == 0 ? *store : *one_, {.sample = refs[2 * i].sample, .rows = {0, 1}}));
  }
  cluster->calls = 0;
  int found = 0;
  ASSERT_OK(store->StatEach("run", kRollout, refs, [&](const SampleRef&, const absl::StatusOr<SampleState>& state) {
    found += state.ok() ? 1 : 0;
    return absl::OkStatus();
  }));
  EXPECT_EQ(found, kSamples);
  EXPECT_LT(cluster->calls, 12);  // Looking at 600 samples one by one would take 900 calls.
}

TEST_F(RedisFailureTest, ARedisWithoutRoomRejectsAppendsAndServesReads) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  ASSERT_OK(Append(*one_, {.sample = "full", .rows = {0, 40}}));
  Ask(RedisCommand({"CONFIG", "SET", "maxmemory", "1"}));
  EXPECT_THAT(Append(*one_, {.rows = {40, 70}}), Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_THAT(Append(*other_, {.sample = "t", .rows = {0, 7}}),
              Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 40));
  clock_.Advance(std::chrono::hours(1));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 40));
  EXPECT_EQ(one_->Stat("run", kRollout, {.sample = "s"})->idle_ms, 0);  // The read was recorded as a use.
  const std::vector<SampleRef> refs{{.sample = "full"}};
  EXPECT_EQ(other_->Release("run", std::nullopt, refs)->samples, 1);
  EXPECT_EQ(other_->GetTotals().samples, 1);
  Ask(RedisCommand({"CONFIG", "SET", "maxmemory", "0"}));
  EXPECT_OK(Append(*one_, {.rows = {40, 70}}));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 70));
  EXPECT_EQ(other_->GetTotals().samples, 1);
}

TEST_F(RedisFailureTest, ARedisThatIsAwayIsUnavailableAndComesBackEmpty) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  redis_->Kill();
  EXPECT_EQ(Read(*one_).status().code(), absl::StatusCode::kUnavailable);
  ASSERT_OK(redis_->Restart());
  EXPECT_THAT(Read(*one_), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  run_ = *other_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  EXPECT_TRUE(run_.created);
  EXPECT_OK(Append(*one_, {.from = kOther, .rows = {0, 5}}));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), kOther, 5));
}

// An append records the sample's use only if the last recorded use is at least a minute ago. Otherwise each of many
// small appends would cost two more commands.
TEST_F(RedisFailureTest, AppendsThatFollowEachOtherCloselyNoteTheirUseOnce) {
  ASSERT_OK(Append(*one_, {.rows = {0, 10}}));
  const std::string manifest = Manifest();
  const std::string used = Ask(RedisCommand({"HGET", manifest, "u"})).text;
  int64_t rows = 10;
  for (int i = 0; i < 4; ++i, rows += 10) {
    clock_.Advance(std::chrono::seconds(25));
    ASSERT_OK(Append(i % 2 ? *one_ : *other_, {.rows = {rows, rows + 10}}));
    EXPECT_EQ(Ask(RedisCommand({"HGET", manifest, "u"})).text != used, i >= 2);
  }
}

TEST_F(RedisFailureTest, DroppedRunsAreClearedAway) {
  for (int i = 0; i < 50; ++i) ASSERT_OK(Append(*one_, {.sample = absl::StrCat("s", i), .rows = {0, 40}}));
  ASSERT_OK(Append(*one_, {.producer = Producer::kTrainer, .rows = {0, 40}}));
  ASSERT_OK_AND_ASSIGN(const ReleaseResult dropped, one_->DropRun("run"));
  EXPECT_EQ(dropped.samples, 51);
  EXPECT_EQ(Keys("}:m").size(), 0u);
  EXPECT_EQ(ChunksThatStay(), 0);
  run_ = *one_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  // The keys other than chunks: one manifest, four keys of its part's index, the run and the list of runs.
  EXPECT_EQ(Keys().size() - Chunks().size() - Keys("}:2:").size(), 1 + 4 + 2u);
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 40));
}

TEST_F(RedisFailureTest, ARunThatCannotBeReadHidesNoOther) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  ASSERT_OK(one_->OpenRun("junk", &TestGeometry(), std::nullopt));
  Ask(RedisCommand({"SETRANGE", "rr:{junk}:r", "16", "junk"}));
  const std::unique_ptr<Store> store = NewStore();
  ASSERT_OK_AND_ASSIGN(const std::vector<RunState> runs, store->ListRuns());
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].info.run, "run");
  EXPECT_EQ(store->GetRun("junk").status().code(), absl::StatusCode::kDataLoss);
  clock_.Advance(std::chrono::hours(12));
  EXPECT_EQ(store->Sweep(10), 1);
}

TEST_F(RedisFailureTest, ASampleThatCannotBeReadHidesNoOther) {
  ASSERT_OK(Append(*one_, {.sample = "damaged", .rows = {0, 40}}));
  Ask(RedisCommand({"HSET", Manifest(), "head", "junk"}));
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  for (Store* store : {one_.get(), other_.get()}) {
    ASSERT_OK_AND_ASSIGN(const ListPage page, NewStore()->List("run", kRollout, std::nullopt, 1000, ""));
    ASSERT_EQ(page.samples.size(), 1u);
    EXPECT_EQ(page.samples[0].sample, "s");
    EXPECT_THAT(Read(*NewStore(), "damaged"), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
    EXPECT_EQ(*Read(*store), ExpectedRows(TestGeometry(), {}, 40));
  }
}

// Redis denies permission to this server's own login. That is not its client's fault, so the client gets UNAVAILABLE
// and not PERMISSION_DENIED.
TEST_F(RedisFailureTest, TheServersOwnLoginIsNotItsClientsTrouble) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  ASSERT_EQ(one_->GetTotals().samples, 1);
  Ask(RedisCommand({"ACL", "SETUSER", "default", "-hgetall", "-evalsha", "-eval", "-smembers"}));
  for (const absl::Status& status :
       {Append(*one_, {.rows = {40, 70}}), Read(*NewStore()).status(), one_->ListRuns().status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_FALSE(absl::StrContains(status.message(), "rr:")) << status;
    EXPECT_FALSE(absl::StrContains(status.message(), "default")) << status;
  }
  EXPECT_EQ(one_->GetTotals().samples, 1);  // The last known value.
  Ask(RedisCommand({"ACL", "SETUSER", "default", "+@all"}));
  EXPECT_OK(Append(*one_, {.rows = {40, 70}}));
}

TEST_F(RedisFailureTest, ACallWaitsNoLongerThanItsCaller) {
  const auto store = NewRedisStore(Connect(), {.clock = &clock_, .timeout = std::chrono::hours(1)});
  ASSERT_OK(Append(*store, {.rows = {0, 40}}));
  ASSERT_OK_AND_ASSIGN(const SampleSnapshot snapshot,
                       store->Snapshot("run", Producer::kRollout, {.sample = "s"}, {{RowRange{0, 40}}}));
  redis_->Pause();
  {
    const CallDeadline deadline(Clock::Real().Now() + std::chrono::milliseconds(50));
    for (int i = 0; i < 2; ++i) {  // In the second round the deadline has already passed.
      for (const absl::Status& status :
           {Append(*store, {.rows = {40, 41}}), Read(*store).status(), store->OpenRun("run", nullptr, {}).status(),
            Release(*store), store->ListRuns().status(), Load(snapshot.rows[0].block).status()}) {
        EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
      }
    }
  }
  redis_->Signal(SIGCONT);
  EXPECT_OK(Load(snapshot.rows[0].block));
  EXPECT_OK(Append(*store, {.rows = {40, 41}}));
}

// The first watch of a sample fires although nothing has changed, because the sample's last version is unknown. Later
// watches know it, and must not fire.
TEST_F(RedisFailureTest, AWatchAfterAWatchIsQuiet) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  int fired = 0;
  for (int i = 0; i < 20; ++i) {
    std::atomic<bool> told{false};
    ASSERT_OK_AND_ASSIGN(const auto watch, other_->WatchSample("run", kRollout, {.sample = "s"}, [&] { told = true; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fired += told;
  }
  EXPECT_LE(fired, 2);  // The first watch, and one more at most.
}

// Simulates a failover to a replica that had not received the last writes.
TEST_F(RedisFailureTest, WhatRedisForgotIsNotCommittedAndAGapForTheWriter) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  const std::string key = Manifest();
  const std::string before = Ask(RedisCommand({"DUMP", key})).text;
  ASSERT_OK(Append(*one_, {.rows = {40, 70}, .seal_num_tokens = 71}));
  Ask(RedisCommand({"RESTORE", key, "0", before, "REPLACE"}));
  for (Store* store : {one_.get(), other_.get()}) {
    const auto gap = store->Append(MakeAppend(run_, {.rows = {70, 80}}));
    EXPECT_THAT(gap, Fails(absl::StatusCode::kFailedPrecondition, Reason::kGap));
    EXPECT_EQ(GetErrorDetail(gap.status())->committed_rows, 40);
    EXPECT_EQ(Stat(*store)->committed_rows, 40);
    EXPECT_FALSE(Stat(*store)->sealed());
    EXPECT_EQ(*Read(*store), ExpectedRows(TestGeometry(), {}, 40));
  }
  EXPECT_OK(Append(*other_, {.rows = {40, 80}, .seal_num_tokens = 81}));
  EXPECT_EQ(*Read(*one_), ExpectedRows(TestGeometry(), {}, 80));
}

TEST_F(RedisFailureTest, ASampleThatIsGoneIsNotFoundAndBeginsAgain) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}, .group = 3}));
  Ask(RedisCommand({"DEL", Manifest()}));
  for (Store* store : {one_.get(), other_.get()}) {
    EXPECT_THAT(Stat(*store), Fails(absl::StatusCode::kNotFound, Reason::kNoSample));
    EXPECT_TRUE(store->List("run", kRollout, std::nullopt, 1000, "")->samples.empty());
    EXPECT_TRUE(store->List("run", kRollout, GroupRange{0, 10}, 1000, "")->samples.empty());
  }
  EXPECT_THAT(Append(*one_, {.rows = {40, 50}}), Fails(absl::StatusCode::kFailedPrecondition, Reason::kGap));
  EXPECT_OK(Append(*one_, {.from = kOther, .rows = {0, 20}}));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), kOther, 20));
}

// In a synced run, a change is acknowledged only when a replica has it. The test kills the master, promotes the
// replica, and reads through a new server that has no cached manifest.
TEST_F(RedisFailureTest, WhatASyncedRunAcknowledgesAReplicaHas) {
  WriteToFile(*redis_);
  OpenSyncedRun();
  const auto append = [&](const AppendSpec& spec) { return AppendSynced(*one_, spec); };
  EXPECT_EQ(append({.rows = {0, 40}}).code(), absl::StatusCode::kUnavailable);  // There is no replica.
  ASSERT_OK_AND_ASSIGN(auto replica, redis_->StartReplica());
  WriteToFile(*replica);
  EXPECT_OK(append({.rows = {0, 100}}));
  replica->Pause();
  EXPECT_EQ(append({.rows = {100, 120}}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(append({.rows = {100, 120}}).code(), absl::StatusCode::kUnavailable);  // Repeating it does not help.
  replica->Signal(SIGCONT);
  EXPECT_OK(append({.rows = {100, 120}}));
  EXPECT_OK(one_->Truncate("synced", kRollout, "s", 40, 0));
  EXPECT_OK(one_->Seal("synced", kRollout, "s", 41, 1));
  redis_->Kill();
  ASSERT_OK(replica->Ask(RedisCommand({"REPLICAOF", "NO", "ONE"})));
  redis_ = std::move(replica);
  const auto later = NewStore();
  ASSERT_OK_AND_ASSIGN(const SampleState state, later->Stat("synced", kRollout, {.sample = "s"}));
  EXPECT_EQ(state.committed_rows, 40);
  EXPECT_EQ(state.revision, 1);
  EXPECT_TRUE(state.sealed());
}

// A server that cannot tell whether Redis has WAITAOF must not promise less than it.
TEST_F(RedisFailureTest, ASyncedRunIsNotAcknowledgedUntilRedisSaysWhetherItHasWaitAof) {
  WriteToFile(*redis_);
  OpenSyncedRun();
  ASSERT_OK_AND_ASSIGN(const auto replica, redis_->StartReplica());
  WriteToFile(*replica);
  Ask(RedisCommand({"ACL", "SETUSER", "default", "-command"}));
  const auto store = NewStore();
  EXPECT_EQ(AppendSynced(*store, {.rows = {0, 40}}).code(), absl::StatusCode::kUnavailable);
  Ask(RedisCommand({"ACL", "SETUSER", "default", "+command"}));
  EXPECT_OK(AppendSynced(*store, {.rows = {0, 40}}));
}

// Only chunks that a commit references stay. So the chunks that a killed server leaves behind expire by themselves.
TEST_F(RedisFailureTest, ChunksStayOnceTheyAreCommitted) {
  ASSERT_OK(Append(*one_, {.rows = {0, 100}}));
  EXPECT_EQ(ChunksThatStay(), 4);
  ASSERT_OK(Append(*one_, {.rows = {100, 128}}));
  EXPECT_EQ(ChunksThatStay(), 4);  // The merged chunk expires: only old snapshots need it.
  ASSERT_OK(one_->Truncate("run", kRollout, "s", 40, 0));
  EXPECT_EQ(ChunksThatStay(), 2);
  ASSERT_OK(Release(*other_));
  EXPECT_EQ(ChunksThatStay(), 0);
}

TEST_F(RedisFailureTest, AWatchHearsOfADropElsewhere) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  const auto hears = [&](const std::function<void()>& change) {
    std::atomic<bool> told{false};
    const auto watch = other_->WatchSample("run", kRollout, {.sample = "s"}, [&] { told = true; });
    change();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!told && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return told.load();
  };
  EXPECT_TRUE(hears([] {}));  // The first watch of a sample fires without a change.
  EXPECT_TRUE(hears([&] { ASSERT_OK(one_->DropRun("run")); }));
}

}  // namespace
}  // namespace routing_replay::testing
