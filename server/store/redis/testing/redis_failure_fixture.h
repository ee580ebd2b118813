// A Redis, two servers over it, and ways to disturb the connections between them.
#ifndef SERVER_STORE_REDIS_TESTING_REDIS_FAILURE_FIXTURE_H_
#define SERVER_STORE_REDIS_TESTING_REDIS_FAILURE_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/store/conformance/conformance.h"
#include "server/store/redis/redis_store.h"
#include "tests/support/redis/redis_process.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)

// If `meanwhile` is set, executes the next commit twice, as if its first answer had been lost.
class LossyCluster final : public RedisCluster {
 public:
  explicit LossyCluster(std::shared_ptr<RedisCluster> redis) : redis_(std::move(redis)) {}

  std::vector<RedisResult> Execute(absl::Span<const RedisRequest> requests, Clock::Time deadline) override {
    ++calls;
    // A commit is a script of several keys.
    const bool commits = std::any_of(requests.begin(), requests.end(), [](const RedisRequest& one) {
      return one.command.name() == "EVAL" && one.command.argument(2) != "1";
    });
    std::vector<RedisResult> results = redis_->Execute(requests, deadline);
    if (!commits || meanwhile == nullptr) return results;
    std::exchange(meanwhile, nullptr)();
    results = redis_->Execute(requests, deadline);
    for (RedisResult& result : results) result.repeated = true;
    return results;
  }
  bool clustered() const override { return redis_->clustered(); }

  int calls = 0;                    // Number of calls of Execute.
  std::function<void()> meanwhile;  // Called once, between the two executions of a commit.

 private:
  const std::shared_ptr<RedisCluster> redis_;
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
    return NewRedisStore(std::move(cluster), {.clock = &clock_, .timeout = std::chrono::seconds(2)});
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
  // The keys in Redis that contain `part`.
  std::vector<std::string> Keys(const std::string& part = "") {
    std::vector<std::string> keys;
    for (const RedisReply& key : Ask(RedisCommand({"KEYS", absl::StrCat("*", part, "*")})).elements) {
      keys.push_back(key.text);
    }
    return keys;
  }
  std::string Manifest() {
    const std::vector<std::string> keys = Keys("}:m1:");
    EXPECT_EQ(keys.size(), 1u);
    return keys.empty() ? "" : keys.front();
  }
  absl::StatusOr<Rows> Read(Store& store, const std::string& sample = "s") {
    const std::vector<RowRange> all{{0, kMaxRows}};
    const auto snapshot = store.Snapshot("run", Producer::kRollout, {.sample = sample}, all);
    if (!snapshot.ok()) return snapshot.status();
    return RowsOf(TestGeometry(), *snapshot);
  }
  absl::StatusOr<SampleState> Stat(Store& store, const std::string& sample = "s") {
    return store.Stat("run", Producer::kRollout, {.sample = sample});
  }
  absl::Status Release(Store& store, const std::string& sample = "s") {
    const std::vector<SampleRef> refs{{.sample = sample}};
    return store.Release("run", std::nullopt, refs).status();
  }
  std::vector<std::string> Chunks() { return Keys("}:1:"); }
  // The number of chunks without an expiry time: they stay until they are replaced or released.
  int64_t ChunksThatStay() {
    const std::vector<std::string> keys = Chunks();
    return std::count_if(keys.begin(), keys.end(), [&](const std::string& key) {
      return Ask(RedisCommand({"PTTL", key})).integer == -1;
    });
  }
  // Makes the server write each change to its disk at once, for WAITAOF, and waits until its file is complete.
  static void WriteToFile(const RedisProcess& server) {
    EXPECT_OK(server.Ask(RedisCommand({"CONFIG", "SET", "appendfsync", "always"})));
    EXPECT_OK(server.Ask(RedisCommand({"CONFIG", "SET", "appendonly", "yes"})));
    while (true) {
      ASSERT_OK_AND_ASSIGN(const RedisReply info, server.Ask(RedisCommand({"INFO", "persistence"})));
      if (absl::StrContains(info.text, "aof_rewrite_in_progress:0") &&
          absl::StrContains(info.text, "aof_rewrite_scheduled:0")) {
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  void OpenSyncedRun() {
    run_ = *one_->OpenRun("synced", &TestGeometry(), RunOptions{.block_rows = 32, .durability = Durability::kSynced});
  }
  absl::Status AppendSynced(Store& store, const AppendSpec& spec) {
    AppendCommand command = MakeAppend(run_, spec);
    command.run = "synced";
    return store.Append(std::move(command)).status();
  }
  absl::Status Append(Store& store, const AppendSpec& spec) { return store.Append(MakeAppend(run_, spec)).status(); }

  ManualClock clock_;
  std::unique_ptr<RedisProcess> redis_;
  std::unique_ptr<Store> one_, other_;
  RunInfo run_;
};

}  // namespace routing_replay::testing

#endif  // SERVER_STORE_REDIS_TESTING_REDIS_FAILURE_FIXTURE_H_
