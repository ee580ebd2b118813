// What only a store in Redis has to stand: lost keys, a Redis that comes back with less, no memory.
#include <atomic>
#include <csignal>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "server/store/call_deadline.h"
#include "server/store/redis/redis_failure_fixture.h"
#include "server/store/redis/redis_keys.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr auto kRollout = Producer::kRollout;
constexpr Trajectory kOther{.tokens = 2, .routes = 2};

TEST_F(RedisFailureTest, ALostChunkIsReportedAsLost) {
  ASSERT_OK(Append(*one_, {.rows = {0, 100}}));
  const std::vector<std::string> chunks = Keys(":1:");
  ASSERT_EQ(chunks.size(), 4u);
  Ask(RedisCommand({"DEL", chunks[0]}));
  for (Store* store : {one_.get(), other_.get()}) {
    const absl::Status lost = Read(*store).status();
    EXPECT_THAT(lost, Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
    EXPECT_EQ(GetErrorDetail(lost)->sample, "s");
    EXPECT_TRUE(GetErrorDetail(lost)->row.has_value());
  }
  // It can be released all the same.
  const std::vector<SampleRef> refs{{.sample = "s"}};
  EXPECT_EQ(other_->Release("run", std::nullopt, refs)->samples, 1);
}

TEST_F(RedisFailureTest, DamagedBytesAreReportedAsLost) {
  ASSERT_OK(Append(*one_, {.rows = {0, 20}}));
  const std::vector<std::string> chunks = Keys(":1:");
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

// As after a failover to a replica that had not heard of the last writes.
TEST_F(RedisFailureTest, RowsThatRedisForgotRaiseTheRevision) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  const std::string key = Manifest();
  const std::string before = Ask(RedisCommand({"DUMP", key})).text;
  ASSERT_OK(Append(*one_, {.rows = {40, 70}}));
  Ask(RedisCommand({"RESTORE", key, "0", before, "REPLACE"}));
  const auto lost = one_->Append(MakeAppend(run_, {.rows = {70, 80}}));
  EXPECT_THAT(lost, Fails(absl::StatusCode::kDataLoss, Reason::kNotCommitted));
  const std::optional<ErrorDetail> detail = GetErrorDetail(lost.status());
  EXPECT_EQ(detail->missing_rows, (std::vector<RowRange>{{40, 70}}));
  EXPECT_EQ(detail->committed_rows, 40);
  EXPECT_EQ(detail->revision, 1);
  // Said once; then who goes on as if nothing had happened is refused, here and at other servers.
  for (Store* store : {one_.get(), other_.get()}) {
    EXPECT_THAT(Append(*store, {.rows = {40, 70}}), Fails(absl::StatusCode::kFailedPrecondition, Reason::kOldRevision));
    EXPECT_EQ(store->Stat("run", kRollout, {.sample = "s"})->revision, 1);
  }
  EXPECT_OK(Append(*other_, {.rows = {40, 80}, .revision = 1, .seal_num_tokens = 81}));
  EXPECT_EQ(*Read(*one_), ExpectedRows(TestGeometry(), {}, 80));
}

TEST_F(RedisFailureTest, LossesAreToldOfSamplesThatAreAskedForTogether) {
  std::map<std::string, std::string> manifests, copies;
  for (const std::string sample : {"less", "gone", "damaged", "fine"}) {
    ASSERT_OK(Append(*one_, {.sample = sample, .rows = {0, 40}}));
    for (const std::string& key : Keys(":m1")) {
      if (!copies.contains(key)) manifests[sample] = key;
      copies.try_emplace(key, Ask(RedisCommand({"DUMP", key})).text);
    }
    ASSERT_OK(Append(*one_, {.sample = sample, .rows = {40, 70}}));
  }
  Ask(RedisCommand({"RESTORE", manifests["less"], "0", copies[manifests["less"]], "REPLACE"}));
  Ask(RedisCommand({"DEL", manifests["gone"]}));
  Ask(RedisCommand({"SET", manifests["damaged"], "junk"}));
  const std::vector<SampleRef> refs{
      {.sample = "less"}, {.sample = "gone"}, {.sample = "damaged"}, {.sample = "fine"}, {.sample = "none"}};
  std::vector<absl::StatusCode> codes;
  ASSERT_OK(one_->StatEach("run", kRollout, refs, [&](const SampleRef&, const absl::StatusOr<SampleState>& state) {
    codes.push_back(state.status().code());
    return absl::OkStatus();
  }));
  constexpr auto kLost = absl::StatusCode::kDataLoss;
  EXPECT_THAT(codes, ::testing::ElementsAre(kLost, kLost, kLost, absl::StatusCode::kOk, absl::StatusCode::kNotFound));
  EXPECT_EQ(Stat(*other_, "less")->revision, 1);
  EXPECT_EQ(Stat(*other_, "gone")->revision, 1);
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
  EXPECT_LT(cluster->calls, 12);  // Those of 600 looks one by one: 900.
}

TEST_F(RedisFailureTest, ASealThatRedisForgotRaisesTheRevision) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  const std::string key = Manifest();
  const std::string before = Ask(RedisCommand({"DUMP", key})).text;
  ASSERT_OK(one_->Seal("run", kRollout, "s", 41, 0));
  Ask(RedisCommand({"RESTORE", key, "0", before, "REPLACE"}));
  EXPECT_EQ(Read(*one_).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(one_->Stat("run", kRollout, {.sample = "s"})->revision, 1);
}

// As after a failover, when the server that made the truncation is gone, too.
TEST_F(RedisFailureTest, ATruncationIsAcknowledgedWhenAReplicaHasIt) {
  ASSERT_OK_AND_ASSIGN(auto replica, redis_->StartReplica());
  ASSERT_OK(Append(*one_, {.rows = {0, 100}, .seal_num_tokens = 101}));
  replica->Pause();
  EXPECT_EQ(one_->Truncate("run", kRollout, "s", 50, 0).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Stat(*other_)->revision, 1);  // It was made, which is for the caller to find out.
  replica->Signal(SIGCONT);
  ASSERT_OK(one_->Truncate("run", kRollout, "s", 40, 1));
  redis_->Kill();
  ASSERT_OK(replica->Ask(RedisCommand({"REPLICAOF", "NO", "ONE"})));
  redis_ = std::move(replica);
  const auto later = NewStore();
  EXPECT_EQ(Stat(*later)->revision, 2);
  EXPECT_EQ(*Read(*later), ExpectedRows(TestGeometry(), {}, 40));
}

TEST_F(RedisFailureTest, ARestartIsAcknowledgedWhenAReplicaHasItHoweverOftenItIsAsked) {
  ASSERT_OK_AND_ASSIGN(const auto replica, redis_->StartReplica());
  ASSERT_OK(Append(*one_, {.rows = {0, 100}}));
  const AppendSpec restart{.from = kOther, .rows = {0, 30}, .restart_nonce = 7};
  replica->Pause();
  for (Store* store : {one_.get(), other_.get()}) {
    EXPECT_EQ(Append(*store, restart).code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(Stat(*store)->revision, 1);
  }
  replica->Signal(SIGCONT);
  EXPECT_OK(Append(*other_, restart));
  EXPECT_OK(Append(*other_, {.from = kOther, .rows = {30, 60}, .restart_nonce = 7}));
  replica->Pause();  // A server that has waited for this revision does so no more.
  EXPECT_OK(Append(*other_, {.from = kOther, .rows = {60, 90}, .restart_nonce = 7}));
  EXPECT_EQ(*Read(*one_), ExpectedRows(TestGeometry(), kOther, 90));
}

// It would keep the other streams of its thread waiting.
TEST_F(RedisFailureTest, ARestartWithoutADeadlineDoesNotWaitForLong) {
  const auto store = NewRedisStore("redis", Connect(), {.clock = &clock_, .timeout = std::chrono::hours(1)});
  ASSERT_OK_AND_ASSIGN(const auto replica, redis_->StartReplica());
  ASSERT_OK(Append(*store, {.rows = {0, 100}}));
  replica->Pause();
  const AppendSpec restart{.from = kOther, .rows = {0, 30}, .restart_nonce = 7};
  EXPECT_EQ(Append(*store, restart).code(), absl::StatusCode::kUnavailable);
  replica->Signal(SIGCONT);
  EXPECT_OK(Append(*store, restart));
}

TEST_F(RedisFailureTest, ARestartWhoseRunEndsMeanwhileIsNotMadeInTheNext) {
  const auto cluster = std::make_shared<LossyCluster>(Connect());
  const auto store = NewStore(cluster);
  ASSERT_OK(Append(*store, {.rows = {0, 32}}));
  cluster->awaited = [&] {
    ASSERT_OK(other_->DropRun("run"));
    ASSERT_OK(other_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32}));
  };
  // Whole blocks, of which no copy is left once they are stored.
  const absl::Status status = Append(*store, {.from = kOther, .rows = {0, 64}, .restart_nonce = 7});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_EQ(Stat(*other_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RedisFailureTest, ATruncationWaitsForNobodyWhereThereIsNoReplica) {
  ASSERT_OK(Append(*one_, {.rows = {0, 100}}));
  EXPECT_EQ(one_->Truncate("run", kRollout, "s", 50, 0)->revision, 1);
  {
    ASSERT_OK_AND_ASSIGN(const auto replica, redis_->StartReplica());
    replica->Pause();
    replica->Kill();
  }
  EXPECT_EQ(one_->Truncate("run", kRollout, "s", 40, 1)->revision, 2);
}

TEST_F(RedisFailureTest, LossesAreCounted) {
  const auto lost = std::make_shared<std::atomic<int64_t>>(0);
  const auto store = NewRedisStore("redis", Connect(), {.clock = &clock_, .lost_samples = lost});
  ASSERT_OK(Append(*store, {.rows = {0, 40}}));
  const std::string key = Manifest();
  const std::string before = Ask(RedisCommand({"DUMP", key})).text;
  ASSERT_OK(Append(*store, {.rows = {40, 70}}));
  EXPECT_EQ(*lost, 0);
  Ask(RedisCommand({"RESTORE", key, "0", before, "REPLACE"}));
  EXPECT_TRUE(absl::IsDataLoss(Stat(*store).status()));
  EXPECT_OK(Stat(*store));
  EXPECT_EQ(*lost, 1);
}

TEST_F(RedisFailureTest, ARedisWithoutRoomRefusesAppendsAndServesReads) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  ASSERT_OK(Append(*one_, {.sample = "full", .rows = {0, 40}}));
  Ask(RedisCommand({"CONFIG", "SET", "maxmemory", "1"}));
  EXPECT_THAT(Append(*one_, {.rows = {40, 70}}), Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_THAT(Append(*other_, {.sample = "t", .rows = {0, 7}}),
              Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 40));
  clock_.Advance(std::chrono::hours(1));
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 40));
  EXPECT_EQ(one_->Stat("run", kRollout, {.sample = "s"})->idle_ms, 0);  // The use was noted.
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

// Whatever dies half-way, nothing stays for ever: all keys but the list of runs and the runs themselves end by
// themselves.
TEST_F(RedisFailureTest, KeysOfSamplesHaveATimeToLive) {
  ASSERT_OK(Append(*one_, {.rows = {0, 100}, .group = 3}));
  ASSERT_OK(Append(*one_, {.rows = {100, 130}}));
  ASSERT_OK(Read(*other_));
  clock_.Advance(std::chrono::hours(9));
  ASSERT_OK(Read(*other_));
  for (const std::string& key : Keys()) {
    const int64_t ttl_ms = Ask(RedisCommand({"PTTL", key})).integer;
    if (absl::EndsWith(key, ":runs") || absl::EndsWith(key, "{run}:r")) {
      EXPECT_EQ(ttl_ms, -1) << key;
    } else if (absl::StrContains(key, ":1:")) {
      // Read through a block until then, or replaced a short time ago.
      EXPECT_GT(ttl_ms, 0) << key;
    } else {
      EXPECT_GT(ttl_ms, std::chrono::milliseconds(std::chrono::hours(10)).count()) << key;
    }
  }
}

// Each append of many would otherwise be two commands more.
TEST_F(RedisFailureTest, AppendsThatFollowEachOtherCloselyNoteTheirUseOnce) {
  ASSERT_OK(Append(*one_, {.rows = {0, 10}}));
  const std::string manifest = Manifest();
  const std::string used = Ask(RedisCommand({"HGET", manifest, "u"})).text;
  int64_t rows = 10;
  for (int i = 0; i < 4; ++i, rows += 10) {
    Ask(RedisCommand({"PEXPIRE", manifest, "100000"}));
    clock_.Advance(std::chrono::seconds(25));
    ASSERT_OK(Append(i % 2 ? *one_ : *other_, {.rows = {rows, rows + 10}}));
    const bool noted = i == 2;  // The first one for a minute.
    EXPECT_EQ(Ask(RedisCommand({"PTTL", manifest})).integer > 100000, noted);
    EXPECT_EQ(Ask(RedisCommand({"HGET", manifest, "u"})).text != used, i >= 2);
  }
}

// As if somebody had put in something else: what is taken back is what is there.
TEST_F(RedisFailureTest, AnAppendMakesItsEntryRight) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  const int64_t bytes = one_->ListRuns()->at(0).stored_bytes;
  Ask(RedisCommand({"HSET", Keys(":e1").at(0), "s", "1 10 1 100 0 0"}));
  Ask(RedisCommand({"HSET", Keys("}:n").at(0), "rows", "10", "sealed", "1", "bytes", "100"}));
  ASSERT_OK(Append(*one_, {.rows = {40, 80}}));
  for (const int64_t rows : {80, 120}) {
    const RunState run = one_->ListRuns()->at(0);
    EXPECT_EQ(run.samples, 1);
    EXPECT_EQ(run.sealed_samples, 0);
    EXPECT_EQ(run.committed_rows, rows);
    EXPECT_EQ(run.stored_bytes, Stat(*one_)->stored_bytes);
    EXPECT_GT(run.stored_bytes, bytes);
    ASSERT_OK(Append(*other_, {.rows = {rows, rows + 40}}));
  }
}

// A sample that is read again and again for longer than its chunks were meant to live.
TEST_F(RedisFailureTest, ChunksLiveAsLongAsTheirSampleIsUsed) {
  ASSERT_OK(Append(*one_, {.rows = {0, 100}}));
  const std::vector<std::string> chunks = Keys(":1:");
  for (const std::string& chunk : chunks) Ask(RedisCommand({"PEXPIRE", chunk, "100000"}));
  for (int hours = 0; hours < 24; hours += 6) {
    clock_.Advance(std::chrono::hours(6));
    ASSERT_OK(Read(*other_));
    EXPECT_EQ(one_->Sweep(10), 0);
  }
  for (const std::string& chunk : chunks) EXPECT_GT(Ask(RedisCommand({"PTTL", chunk})).integer, 100000) << chunk;
}

TEST_F(RedisFailureTest, DroppedRunsAreClearedAway) {
  for (int i = 0; i < 50; ++i) ASSERT_OK(Append(*one_, {.sample = absl::StrCat("s", i), .rows = {0, 40}}));
  ASSERT_OK(Append(*one_, {.producer = Producer::kTrainer, .rows = {0, 40}}));
  ASSERT_OK(one_->DropRun("run"));
  run_ = *one_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  other_->Sweep(10);
  EXPECT_GT(Keys(":m1").size(), 50u);  // Somebody may still be reading.
  clock_.Advance(std::chrono::minutes(2));
  for (int i = 0; i < 4; ++i) other_->Sweep(10);
  EXPECT_EQ(Keys(":m").size(), 1u);
  EXPECT_EQ(Keys(":1:").size(), 2u);
  EXPECT_EQ(Keys("dropped").size(), 0u);
  EXPECT_EQ(Keys().size(), 1 + 2 + 4 + 2u);  // Manifest, chunks, one part of the index, the run and the list of runs.
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 40));
}

// An entry whose sample is gone, as after the end of a server between the two.
TEST_F(RedisFailureTest, EntriesWithoutASampleAreTakenOut) {
  const auto lossy = std::make_shared<LossyCluster>(Connect(), /*apart=*/true);
  const std::unique_ptr<Store> store = NewStore(lossy);
  ASSERT_OK(Append(*store, {.rows = {0, 40}}));
  lossy->refused = &redis_scripts::Remove();
  EXPECT_FALSE(Release(*store).ok());
  EXPECT_EQ(*Read(*other_), ExpectedRows(TestGeometry(), {}, 40));
  Ask(RedisCommand({"DEL", Manifest()}));
  EXPECT_THAT(Stat(*other_), Fails(absl::StatusCode::kNotFound, Reason::kNoSample));
  EXPECT_EQ(one_->GetTotals().samples, 1);
  EXPECT_TRUE(other_->List("run", kRollout, std::nullopt, 0, "")->samples.empty());
  EXPECT_EQ(one_->GetTotals().samples, 0);
  EXPECT_EQ(one_->GetTotals().stored_bytes, 0);
}

// As many of them as are looked at in one sweep would keep it from everything else.
TEST_F(RedisFailureTest, TheSweepTakesOutEntriesWithoutASample) {
  for (int i = 0; i < 20; ++i) ASSERT_OK(Append(*one_, {.sample = absl::StrCat("s", i), .rows = {0, 4}}));
  for (const std::string& key : Keys(":m1")) Ask(RedisCommand({"DEL", key}));
  EXPECT_EQ(one_->GetTotals().samples, 20);
  clock_.Advance(std::chrono::hours(12));
  other_->Sweep(10);
  other_->Sweep(10);
  EXPECT_EQ(one_->GetTotals().samples, 0);
  EXPECT_EQ(one_->GetTotals().stored_bytes, 0);
}

TEST_F(RedisFailureTest, ARunThatCannotBeReadHidesNoOther) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  ASSERT_OK(one_->OpenRun("junk", &TestGeometry(), std::nullopt));
  ASSERT_OK(one_->OpenRun("other", &TestGeometry(), std::nullopt));
  Ask(RedisCommand({"HSET", RedisKeys("rr").Run("junk"), "record", "junk"}));
  Ask(RedisCommand({"DEL", RedisKeys("rr").Run("other")}));
  Ask(RedisCommand({"SET", RedisKeys("rr").Run("other"), "junk"}));
  const std::unique_ptr<Store> store = NewStore();
  ASSERT_OK_AND_ASSIGN(const std::vector<RunState> runs, store->ListRuns());
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].info.run, "run");
  EXPECT_EQ(store->GetRun("junk").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(store->GetRun("other").status().code(), absl::StatusCode::kDataLoss);
  clock_.Advance(std::chrono::hours(12));
  EXPECT_EQ(store->Sweep(10), 1);
}

TEST_F(RedisFailureTest, ASampleThatCannotBeReadHidesNoOther) {
  const std::vector<std::string> damaged{"birth", "use", "version", "type"};
  for (const std::string& sample : damaged) ASSERT_OK(Append(*one_, {.sample = sample, .rows = {0, 40}}));
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  for (const std::string& key : Keys(":m1")) {
    const std::string id = Ask(RedisCommand({"HGET", key, "id"})).text;
    if (id == "birth") Ask(RedisCommand({"HSET", key, "b", "junk"}));
    if (id == "use") Ask(RedisCommand({"HSET", key, "x", "junk"}));
    if (id == "version") Ask(RedisCommand({"HSET", key, "v", "junk"}));
    if (id != "type") continue;
    Ask(RedisCommand({"DEL", key}));
    Ask(RedisCommand({"SET", key, "junk"}));
  }
  for (Store* store : {one_.get(), other_.get()}) {
    ASSERT_OK_AND_ASSIGN(const ListPage page, store->List("run", kRollout, std::nullopt, 0, ""));
    ASSERT_EQ(page.samples.size(), 1u);
    EXPECT_EQ(page.samples[0].sample, "s");
    for (const std::string& sample : damaged) {
      EXPECT_THAT(Read(*store, sample), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum)) << sample;
    }
    EXPECT_EQ(*Read(*store), ExpectedRows(TestGeometry(), {}, 40));
  }
  std::vector<SampleRef> refs{{.sample = "s"}};
  for (const std::string& sample : damaged) refs.push_back({.sample = sample});
  EXPECT_EQ(other_->Release("run", std::nullopt, refs)->samples, 3);  // The two without a version stay for their time.
}

// It is the server whom Redis refuses, not its client.
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
  EXPECT_EQ(one_->GetTotals().samples, 1);  // As last known.
  Ask(RedisCommand({"ACL", "SETUSER", "default", "+@all"}));
  EXPECT_OK(Append(*one_, {.rows = {40, 70}}));
}

// A server whose machine has the wrong time must not judge what is idle, and notes uses by the time of the others.
TEST_F(RedisFailureTest, AWrongClockRemovesNothing) {
  class WrongClock final : public Clock {
   public:
    Time Now() const override { return Clock::Real().Now(); }
    std::chrono::system_clock::time_point TimeOfDay() const override {
      return Clock::Real().TimeOfDay() + std::chrono::hours(20);
    }
  } wrong;
  const auto store = [&](const Clock& clock) {
    return NewRedisStore("redis", Connect(), {.clock = &clock, .follow_time = true});
  };
  const std::unique_ptr<Store> right = store(Clock::Real()), ahead = store(wrong);
  ASSERT_OK(Append(*right, {.rows = {0, 40}}));
  ASSERT_OK(Append(*ahead, {.sample = "t", .rows = {0, 40}}));
  for (Store* sweeper : {ahead.get(), right.get()}) {
    EXPECT_EQ(sweeper->Sweep(10), 0);
    EXPECT_LT(sweeper->Stat("run", kRollout, {.sample = "s"})->idle_ms, 60000);
    EXPECT_LT(sweeper->Stat("run", kRollout, {.sample = "t"})->idle_ms, 60000);
  }
  for (const std::string& manifest : Keys(":m1")) Ask(RedisCommand({"HSET", manifest, "u", "1"}));
  for (const std::string& due : Keys("d1")) {
    for (const char* sample : {"s", "t"}) Ask(RedisCommand({"ZADD", due, "XX", "1", sample}));
  }
  EXPECT_EQ(ahead->Sweep(10), 0);
  EXPECT_EQ(right->Sweep(10), 2);
}

TEST_F(RedisFailureTest, AnAbandonedStoreKeepsNobodyWaiting) {
  const auto cluster = Connect();
  const auto store = NewRedisStore("redis", cluster, {.clock = &clock_, .timeout = std::chrono::hours(1)});
  ASSERT_OK(Append(*store, {.rows = {0, 40}}));
  redis_->Pause();
  absl::Status read;
  std::thread sweep([&] { store->Sweep(10); });
  std::thread reader([&] { read = Read(*store).status(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  store->Abandon();
  sweep.join();
  reader.join();
  EXPECT_EQ(read.code(), absl::StatusCode::kUnavailable) << read;
  EXPECT_EQ(Append(*store, {.rows = {40, 41}}).code(), absl::StatusCode::kUnavailable);
  redis_->Signal(SIGCONT);
}

TEST_F(RedisFailureTest, ACallWaitsNoLongerThanItsCaller) {
  const auto store = NewRedisStore("redis", Connect(), {.clock = &clock_, .timeout = std::chrono::hours(1)});
  ASSERT_OK(Append(*store, {.rows = {0, 40}}));
  ASSERT_OK_AND_ASSIGN(const SampleSnapshot snapshot,
                       store->Snapshot("run", Producer::kRollout, {.sample = "s"}, {{RowRange{0, 40}}}));
  redis_->Pause();
  {
    const CallDeadline deadline(Clock::Real().Now() + std::chrono::milliseconds(50));
    for (int i = 0; i < 2; ++i) {  // The second time it has passed before.
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

// Each of them would take seconds if it waited for a channel that cannot be heard.
TEST_F(RedisFailureTest, AWatchNeverWaitsForItsChannel) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  Ask(RedisCommand({"ACL", "SETUSER", "default", "resetchannels"}));
  const auto store = NewStore();
  std::atomic<int> told{0};
  std::vector<std::unique_ptr<Store::Watch>> watches;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK_AND_ASSIGN(watches.emplace_back(),
                         store->WatchSample("run", kRollout, {.sample = absl::StrCat("s", i)}, [&] { ++told; }));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  Ask(RedisCommand({"ACL", "SETUSER", "default", "allchannels"}));
  while (told < 10 && std::chrono::steady_clock::now() < start + std::chrono::minutes(1)) std::this_thread::yield();
  EXPECT_EQ(told, 10);
}

// A channel that is opened anew fires, so one that is watched again and again must stay open.
TEST_F(RedisFailureTest, AWatchAfterAWatchIsQuiet) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  int fired = 0;
  for (int i = 0; i < 20; ++i) {
    std::atomic<bool> told{false};
    ASSERT_OK_AND_ASSIGN(const auto watch, other_->WatchSample("run", kRollout, {.sample = "s"}, [&] { told = true; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fired += told;
  }
  EXPECT_LE(fired, 2);  // Once for each channel.
}

TEST_F(RedisFailureTest, WatchesOfAnOldLifeAreToldOfItsEnd) {
  const std::string key = RedisKeys("rr").Run("run");
  const std::string life = Ask(RedisCommand({"HGET", key, "life"})).text;
  const auto wait = [](std::atomic<bool>& told) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!told && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return told.load();
  };
  std::atomic<bool> opened{false}, old_told{false}, new_told{false};
  {  // The channels are open, and have said so.
    const auto first = other_->WatchSample("run", kRollout, {.sample = "s"}, [&] { opened = true; });
    ASSERT_TRUE(wait(opened));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const auto old_watch = other_->WatchSample("run", kRollout, {.sample = "s"}, [&] { old_told = true; });
  Ask(RedisCommand({"DEL", key}));
  ASSERT_TRUE(one_->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32})->created);
  const auto new_watch = other_->WatchSample("run", kRollout, {.sample = "t"}, [&] { new_told = true; });
  ASSERT_TRUE(wait(new_told));  // By its own channel, which is new.
  EXPECT_FALSE(old_told);
  Ask(RedisCommand({"SPUBLISH", RedisKeys("rr").RunChannel("run"), absl::StrCat("server 0 ", life)}));
  EXPECT_TRUE(wait(old_told));
}

}  // namespace
}  // namespace routing_replay::testing
