// What only a store in Redis has to stand: lost keys, a Redis that comes back with less, no memory, other servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/store/conformance/conformance.h"
#include "server/store/redis/redis_keys.h"
#include "server/store/redis/redis_scripts.h"
#include "server/store/redis/redis_store.h"
#include "tests/support/redis/redis_process.h"

namespace routing_replay::testing {
namespace {

constexpr auto kRollout = Producer::kRollout;
constexpr Trajectory kOther{.tokens = 2, .routes = 2};

// Loses answers to commits and lets others go first.
class LossyCluster final : public RedisCluster {
 public:
  // `apart`: says that it is a cluster, so that samples and their places in the index change in several steps.
  explicit LossyCluster(std::shared_ptr<RedisCluster> redis, bool apart = false)
      : redis_(std::move(redis)), apart_(apart) {}

  std::vector<RedisResult> Execute(absl::Span<const RedisRequest> requests, Clock::Time deadline) override {
    const auto has = [&](const RedisScript& script) {
      return std::any_of(requests.begin(), requests.end(), [&](const auto& one) { return one.script == &script; });
    };
    if (first != nullptr && has(*before)) std::exchange(first, nullptr)();
    if (refused != nullptr && has(*refused)) return std::vector<RedisResult>(requests.size());
    std::vector<RedisResult> results = redis_->Execute(requests, deadline);
    if (!has(redis_scripts::Commit()) || meanwhile == nullptr) return results;
    const auto call = std::exchange(meanwhile, nullptr);
    // What goes in front is no part of the commit: others may come between the two.
    std::vector<RedisRequest> again(requests.begin(), requests.end());
    for (RedisRequest& request : again) {
      for (const RedisCommand& command : std::exchange(request.before, {})) {
        redis_->ExecuteOne({.command = command, .key = request.key}, deadline);
      }
    }
    call();
    results = redis_->Execute(again, deadline);
    for (RedisResult& result : results) result.repeated = true;
    return results;
  }
  std::vector<RedisAddress> Masters() override { return redis_->Masters(); }
  RedisResult ExecuteAt(const RedisAddress& server, const RedisCommand& command, Clock::Time deadline) override {
    return redis_->ExecuteAt(server, command, deadline);
  }
  bool clustered() const override { return apart_ || redis_->clustered(); }
  RedisClusterCounters counters() const override { return redis_->counters(); }
  std::shared_ptr<RedisTopology> topology() override { return redis_->topology(); }
  void Abandon() override { redis_->Abandon(); }

  std::function<void()> meanwhile;       // Called between a commit and its second sending.
  std::function<void()> first;           // Called once, before …
  const RedisScript* before = nullptr;   // … this script.
  const RedisScript* refused = nullptr;  // Is not carried out.

 private:
  const std::shared_ptr<RedisCluster> redis_;
  const bool apart_;
};

class RedisFailureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!NoRedisReason().empty()) GTEST_SKIP() << NoRedisReason();
    redis_ = *RedisProcess::Start();
    one_ = NewStore();
    other_ = NewStore();
    run_ = *one_->OpenRun("run", &TestGeometry(), RunOptions{.ttl = std::chrono::hours(10), .block_rows = 32});
  }

  std::unique_ptr<Store> NewStore() { return NewStore(Connect()); }
  std::unique_ptr<Store> NewStore(std::shared_ptr<RedisCluster> cluster) {
    return NewRedisStore("redis", std::move(cluster),
                         {.clock = &clock_, .budget = &budget_, .timeout = std::chrono::seconds(2)});
  }
  std::shared_ptr<RedisCluster> Connect() {
    auto cluster = RedisCluster::Connect(redis_->endpoint(), {}, Clock::Real().Now() + std::chrono::seconds(10));
    EXPECT_OK(cluster);
    return *std::move(cluster);
  }
  RedisReply Ask(const RedisCommand& command) {
    const absl::StatusOr<RedisReply> reply = redis_->Ask(command);
    EXPECT_OK(reply);
    return reply.value_or(RedisReply{});
  }
  // Keys that have `part` in them.
  std::vector<std::string> Keys(const std::string& part = "") {
    std::vector<std::string> keys;
    for (const RedisReply& key : Ask(RedisCommand({"KEYS", absl::StrCat("*", part, "*")})).elements) {
      keys.push_back(key.text);
    }
    return keys;
  }
  std::string Manifest() {
    const std::vector<std::string> keys = Keys(":m1");
    EXPECT_EQ(keys.size(), 1u);
    return keys.empty() ? "" : keys.front();
  }
  absl::StatusOr<Rows> Read(Store& store, const std::string& sample = "s") {
    const std::vector<RowRange> all{{0, kMaxRows}};
    const auto snapshot = store.Snapshot("run", kRollout, {.sample = sample}, all);
    if (!snapshot.ok()) return snapshot.status();
    return RowsOf(TestGeometry(), *snapshot);
  }
  // A server for which samples and index are apart.
  std::unique_ptr<Store> NewStoreApart() { return NewStore(std::make_shared<LossyCluster>(Connect(), true)); }
  absl::StatusOr<SampleState> Stat(Store& store, const std::string& sample = "s") {
    return store.Stat("run", kRollout, {.sample = sample});
  }
  absl::Status Release(Store& store, const std::string& sample = "s") {
    const std::vector<SampleRef> refs{{.sample = sample}};
    return store.Release("run", std::nullopt, refs).status();
  }
  // Whether all chunks have more than the time that replaced ones are left.
  bool ChunksLast() {
    const std::vector<std::string> keys = Keys(":1:");
    return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) {
      return Ask(RedisCommand({"PTTL", key})).integer > 60000;
    });
  }
  absl::Status Append(Store& store, const AppendSpec& spec) { return store.Append(MakeAppend(run_, spec)).status(); }

  ManualClock clock_;
  ByteBudget budget_{1 << 30};
  std::unique_ptr<RedisProcess> redis_;
  std::unique_ptr<Store> one_, other_;
  RunInfo run_;
};

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

TEST_F(RedisFailureTest, ASealThatRedisForgotRaisesTheRevision) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}}));
  const std::string key = Manifest();
  const std::string before = Ask(RedisCommand({"DUMP", key})).text;
  ASSERT_OK(one_->Seal("run", kRollout, "s", 41, 0));
  Ask(RedisCommand({"RESTORE", key, "0", before, "REPLACE"}));
  EXPECT_EQ(Read(*one_).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(one_->Stat("run", kRollout, {.sample = "s"})->revision, 1);
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

TEST_F(RedisFailureTest, CountsOfWhatAnotherServerReleasedAreGivenBack) {
  ASSERT_OK(Append(*one_, {.rows = {0, 40}, .group = 3}));
  ASSERT_OK(one_->CountExperts("run", kRollout, {}, {}, [] { return false; }));
  EXPECT_GT(budget_.used(), 0);
  ASSERT_OK(other_->ReleaseGroups("run", std::nullopt, {3, 4}));
  for (int i = 0; i < 2; ++i) {
    clock_.Advance(std::chrono::minutes(11));
    one_->Sweep(10);
  }
  EXPECT_EQ(budget_.used(), 0);
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
    EXPECT_OK(store->CountExperts("run", kRollout, {}, {}, [] { return false; }));
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
    return NewRedisStore("redis", Connect(), {.clock = &clock, .budget = &budget_, .follow_time = true});
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
  const auto store =
      NewRedisStore("redis", cluster, {.clock = &clock_, .budget = &budget_, .timeout = std::chrono::hours(1)});
  ASSERT_OK(Append(*store, {.rows = {0, 40}}));
  redis_->Signal(SIGSTOP);
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
