// Tests with a real cluster of six servers: routing, resharding under load and failover under load.
#include "server/store/redis/client/redis_cluster.h"

#include <atomic>
#include <csignal>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/support/redis/redis_cluster_process.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using routing_replay::testing::NoRedisReason;
using routing_replay::testing::RedisClusterProcess;

Clock::Time In(std::chrono::milliseconds time) { return Clock::Real().Now() + time; }
Clock::Time Soon() { return In(std::chrono::seconds(30)); }

RedisResult ExecuteOne(RedisCluster& cluster, const RedisRequest& request, Clock::Time deadline) {
  return std::move(cluster.Execute({&request, 1}, deadline).front());
}

RedisRequest Get(const std::string& key) { return {.command = RedisCommand({"GET", key}), .key = key}; }
RedisRequest Set(const std::string& key, const std::string& value) {
  return {.command = RedisCommand({"SET", key, value}), .key = key};
}

// Writers that each count up their own keys, one after the other, and read back what was acknowledged.
class Load {
 public:
  static constexpr int kThreads = 3;
  static constexpr int kKeys = 20;

  Load(RedisCluster& cluster, std::string prefix) : cluster_(cluster), prefix_(std::move(prefix)) {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this, i] { Run(i); });
  }
  ~Load() {
    if (!threads_.empty()) Stop();
  }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  int64_t rounds() const { return rounds_; }
  int64_t wrong() const { return wrong_; }
  int64_t failed() const { return failed_; }
  void AwaitRounds(int64_t more) {
    const int64_t until = rounds_ + more;
    const Clock::Time deadline = Soon();
    while (rounds_ < until && Clock::Real().Now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_GE(rounds_, until);
  }

 private:
  void Run(int thread) {
    for (int64_t value = 1; !stop_; ++value) {
      std::vector<RedisRequest> writes, reads;
      for (int i = 0; i < kKeys; ++i) {
        const std::string key = absl::StrCat(prefix_, "{", thread * kKeys + i, "}");
        writes.push_back(Set(key, absl::StrCat(value)));
        reads.push_back(Get(key));
      }
      for (const RedisResult& result : cluster_.Execute(writes, Soon())) failed_ += result.reply.ok() ? 0 : 1;
      for (const RedisResult& result : cluster_.Execute(reads, Soon())) {
        if (!result.reply.ok()) {
          ++failed_;
        } else if (result.reply->text != absl::StrCat(value)) {
          ++wrong_;
        }
      }
      ++rounds_;
    }
  }

  RedisCluster& cluster_;
  const std::string prefix_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> rounds_{0}, wrong_{0}, failed_{0};
  std::vector<std::thread> threads_;
};

// All tests use the same servers. Each test begins with servers that hold no keys and all run.
class RedisClusterTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (NoRedisReason().empty()) servers_ = *RedisClusterProcess::Start();
  }
  static void TearDownTestSuite() { servers_.reset(); }

  void SetUp() override {
    if (const std::string reason = NoRedisReason(); !reason.empty()) GTEST_SKIP() << reason;
    ASSERT_OK(servers_->Heal());
    ASSERT_OK_AND_ASSIGN(cluster_, RedisCluster::Connect(servers_->endpoint(), {}, Soon()));
    std::vector<RedisRequest> requests;  // Each master has some of so many keys.
    for (int key = 0; key < 100; ++key) {
      requests.push_back({.command = RedisCommand({"FLUSHALL"}), .key = absl::StrCat(key)});
    }
    for (const RedisResult& result : cluster_->Execute(requests, Soon())) ASSERT_OK(result.reply);
  }
  static std::unique_ptr<RedisClusterProcess> servers_;
  std::unique_ptr<RedisCluster> cluster_;
};

std::unique_ptr<RedisClusterProcess> RedisClusterTest::servers_;

TEST_F(RedisClusterTest, KeysOfAllServers) {
  EXPECT_TRUE(cluster_->clustered());
  std::vector<RedisRequest> writes, reads;
  for (int i = 0; i < 1000; ++i) {
    writes.push_back(Set(absl::StrCat("key", i), absl::StrCat(i)));
    reads.push_back(Get(absl::StrCat("key", i)));
  }
  for (const RedisResult& result : cluster_->Execute(writes, Soon())) ASSERT_OK(result.reply);
  const auto results = cluster_->Execute(reads, Soon());
  for (int i = 0; i < 1000; ++i) {
    ASSERT_OK(results[i].reply);
    EXPECT_EQ(results[i].reply->text, absl::StrCat(i));
  }
  int64_t keys = 0;
  for (const int slot : {0, kRedisSlots / 2, kRedisSlots - 1}) {  // One slot of each master.
    ASSERT_OK_AND_ASSIGN(const int master, servers_->MasterOf(slot));
    ASSERT_OK_AND_ASSIGN(const RedisReply size, servers_->node(master).Ask(RedisCommand({"DBSIZE"})));
    EXPECT_LT(size.integer, 1000);
    keys += size.integer;
  }
  EXPECT_EQ(keys, 1000);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      ExecuteOne(*cluster_, {.command = RedisCommand({"MGET", "a", "b"}), .key = "a"}, Soon()).reply.status()));
}

TEST_F(RedisClusterTest, ReshardingUnderLoad) {
  Load load(*cluster_, "r");
  load.AwaitRounds(5);
  for (int i = 0; i < 12; ++i) {
    const int slot = RedisSlotOf(absl::StrCat("r{", i * 5, "}"));
    ASSERT_OK_AND_ASSIGN(const int from, servers_->MasterOf(slot));
    ASSERT_OK(servers_->MoveSlot(slot, (from + 1) % RedisClusterProcess::kMasters));
  }
  load.AwaitRounds(5);
  load.Stop();
  EXPECT_EQ(load.failed(), 0);
  EXPECT_EQ(load.wrong(), 0);
}

TEST_F(RedisClusterTest, FailoverUnderLoad) {
  const int slot = RedisSlotOf("f{0}");
  Load load(*cluster_, "f");
  load.AwaitRounds(5);
  ASSERT_OK_AND_ASSIGN(const int victim, servers_->MasterOf(slot));
  const auto killed = Clock::Real().Now();
  servers_->node(victim).Kill();
  ASSERT_OK(servers_->AwaitFailover(slot, victim));
  load.AwaitRounds(20);
  load.Stop();
  EXPECT_EQ(load.failed(), 0);
  // Redis replicates after it answers. So each value that was acknowledged just before the kill may be lost, and its
  // loss is counted once.
  EXPECT_LE(load.wrong(), Load::kThreads * Load::kKeys);
  std::printf("%ld rounds, %ld stale reads, %.1f s\n", load.rounds(), load.wrong(),
              std::chrono::duration<double>(Clock::Real().Now() - killed).count());
}

TEST_F(RedisClusterTest, MasterThatHangsIsPassedOver) {
  ASSERT_OK_AND_ASSIGN(cluster_, RedisCluster::Connect(servers_->endpoint(),
                                                       {.connect_timeout = std::chrono::milliseconds(400),
                                                        .response_timeout = std::chrono::milliseconds(500)},
                                                       Soon()));
  const int slot = RedisSlotOf("h{0}");
  Load load(*cluster_, "h");
  load.AwaitRounds(5);
  ASSERT_OK_AND_ASSIGN(const int victim, servers_->MasterOf(slot));
  servers_->node(victim).Pause();
  ASSERT_OK(servers_->AwaitFailover(slot, victim));
  load.AwaitRounds(20);
  servers_->node(victim).Signal(SIGCONT);
  load.AwaitRounds(20);
  load.Stop();
  EXPECT_EQ(load.failed(), 0);
}

}  // namespace
}  // namespace routing_replay::server
