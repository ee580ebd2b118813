// Against a real cluster of six: routing, resharding under load, failover under load, and subscriptions through both.
#include "server/store/redis/client/redis_cluster.h"

#include <atomic>
#include <csignal>
#include <fstream>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/wire/mutex.h"
#include "server/store/redis/client/redis_subscriber.h"
#include "server/store/redis/client/server_check.h"
#include "server/store/redis/client/slot_map.h"
#include "tests/support/redis/redis_cluster_process.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using routing_replay::testing::NoRedisReason;
using routing_replay::testing::RedisClusterProcess;

Clock::Time In(std::chrono::milliseconds time) { return Clock::Real().Now() + time; }
Clock::Time Soon() { return In(std::chrono::seconds(30)); }

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

// What a subscriber heard.
class Ear {
 public:
  RedisSubscriber::Callback callback() {
    return [this](const RedisEvent& event) {
      const MutexLock lock(mutex_);
      events_.push_back(event);
      heard_.NotifyAll();
    };
  }
  // Whether `channel` had `count` events with a message, or without one, since the beginning.
  bool Await(const std::string& channel, bool message, int count, Clock::Time deadline = Soon()) {
    const MutexLock lock(mutex_);
    while (Count(channel, message) < count) {
      if (!heard_.WaitUntil(mutex_, deadline) && Clock::Real().Now() >= deadline) return false;
    }
    return true;
  }
  int CountOf(const std::string& channel, bool message) {
    const MutexLock lock(mutex_);
    return Count(channel, message);
  }

 private:
  int Count(const std::string& channel, bool message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return static_cast<int>(std::count_if(events_.begin(), events_.end(), [&](const RedisEvent& event) {
      return event.channel == channel && event.message.has_value() == message;
    }));
  }

  Mutex mutex_;
  CondVar heard_;
  std::vector<RedisEvent> events_ ABSL_GUARDED_BY(mutex_);
};

// The tests share the servers; each finds them empty, and alive.
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
    for (const RedisAddress& master : cluster_->Masters()) {
      ASSERT_OK(cluster_->ExecuteAt(master, RedisCommand({"FLUSHALL"}), Soon()).reply);
    }
  }
  void Publish(const std::string& channel) {
    EXPECT_OK(
        cluster_->ExecuteOne({.command = RedisCommand({"SPUBLISH", channel, "x"}), .key = channel}, Soon()).reply);
  }

  static std::unique_ptr<RedisClusterProcess> servers_;
  std::unique_ptr<RedisCluster> cluster_;
};

std::unique_ptr<RedisClusterProcess> RedisClusterTest::servers_;

TEST_F(RedisClusterTest, KeysOfAllServers) {
  EXPECT_TRUE(cluster_->clustered());
  EXPECT_EQ(cluster_->Masters().size(), 3u);
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
  EXPECT_EQ(cluster_->counters().moved, 0);
  int64_t keys = 0;
  for (const RedisAddress& master : cluster_->Masters()) {
    keys += cluster_->ExecuteAt(master, RedisCommand({"DBSIZE"}), Soon()).reply->integer;
  }
  EXPECT_EQ(keys, 1000);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      cluster_->ExecuteOne({.command = RedisCommand({"MGET", "a", "b"}), .key = "a"}, Soon()).reply.status()));
}

TEST_F(RedisClusterTest, SettingsOfServersWithReplicas) {
  ASSERT_OK_AND_ASSIGN(const auto warnings, CheckRedisServers(*cluster_, Soon()));
  ASSERT_EQ(warnings.size(), 3u * 5);
  for (const char* setting : {"maxmemory is 0", "lazyfree-lazy-expire is no", "appendonly is no",
                              "repl-backlog-size is", "client-output-buffer-limit is"}) {
    EXPECT_THAT(warnings, ::testing::Contains(::testing::HasSubstr(setting))) << setting;
  }
}

// As redis-server reads them from its command line.
std::vector<std::string> SettingsOfFile(const std::string& path) {
  std::vector<std::string> settings;
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    settings.push_back(absl::StrCat("--", words[0]));
    for (size_t i = 1; i < words.size(); ++i) settings.push_back(words[i] == R"("")" ? "" : words[i]);
  }
  return settings;
}

TEST(RedisClusterSettings, ThoseOfTheComposeFileAreTheOnesWanted) {
  if (const std::string reason = NoRedisReason(); !reason.empty()) GTEST_SKIP() << reason;
  ASSERT_OK_AND_ASSIGN(const auto servers, RedisClusterProcess::Start(SettingsOfFile("deploy/compose/redis.conf")));
  ASSERT_OK_AND_ASSIGN(const auto cluster, RedisCluster::Connect(servers->endpoint(), {}, Soon()));
  EXPECT_THAT(CheckRedisServers(*cluster, Soon()).value(), ::testing::ElementsAre());
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
  EXPECT_GT(cluster_->counters().moved, 0);
  const auto counters = cluster_->counters();
  std::printf("moved %ld asked %ld retried %ld refreshes %ld\n", counters.moved, counters.asked, counters.retried,
              counters.map_refreshes);
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
  // Replication is asynchronous: what was acknowledged just before the kill may be gone, once.
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

TEST_F(RedisClusterTest, SubscriptionsFollowTheirSlots) {
  Ear ear;
  const auto subscriber = RedisSubscriber::Start(*cluster_, ear.callback());
  std::vector<std::string> channels;
  for (int i = 0; i < 30; ++i) channels.push_back(absl::StrCat("{", i, "}:c"));
  for (const std::string& channel : channels) subscriber->Subscribe(channel);
  for (const std::string& channel : channels) ASSERT_TRUE(ear.Await(channel, false, 1)) << subscriber->status();
  for (const std::string& channel : channels) Publish(channel);
  for (const std::string& channel : channels) EXPECT_TRUE(ear.Await(channel, true, 1));

  const std::string& moved = channels[0];
  ASSERT_OK_AND_ASSIGN(const int from, servers_->MasterOf(RedisSlotOf(moved)));
  ASSERT_OK(servers_->MoveSlot(RedisSlotOf(moved), (from + 1) % RedisClusterProcess::kMasters));
  ASSERT_TRUE(ear.Await(moved, false, 2)) << subscriber->status();
  Publish(moved);
  EXPECT_TRUE(ear.Await(moved, true, 2));

  const int slot = RedisSlotOf(channels[1]);
  ASSERT_OK_AND_ASSIGN(const int victim, servers_->MasterOf(slot));
  servers_->node(victim).Kill();
  ASSERT_OK(servers_->AwaitFailover(slot, victim));
  ASSERT_TRUE(ear.Await(channels[1], false, 2)) << subscriber->status();
  Publish(channels[1]);
  EXPECT_TRUE(ear.Await(channels[1], true, 2));
  EXPECT_OK(subscriber->status());
}

}  // namespace
}  // namespace routing_replay::server
