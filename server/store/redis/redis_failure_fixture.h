// A Redis, two servers over it, and ways to break what is between them.
#ifndef SERVER_STORE_REDIS_REDIS_FAILURE_FIXTURE_H_
#define SERVER_STORE_REDIS_REDIS_FAILURE_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/conformance/conformance.h"
#include "server/store/redis/redis_scripts.h"
#include "server/store/redis/redis_store.h"
#include "tests/support/redis/redis_process.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)

// Loses answers to commits and lets others go first.
class LossyCluster final : public RedisCluster {
 public:
  // `apart`: says that it is a cluster, so that samples and their places in the index change in several steps.
  explicit LossyCluster(std::shared_ptr<RedisCluster> redis, bool apart = false)
      : redis_(std::move(redis)), apart_(apart) {}

  std::vector<RedisResult> Execute(absl::Span<const RedisRequest> requests, Clock::Time deadline) override {
    ++calls;
    const auto has = [&](const RedisScript& script) {
      return std::any_of(requests.begin(), requests.end(), [&](const auto& one) { return one.script == &script; });
    };
    if (first != nullptr && has(*before)) std::exchange(first, nullptr)();
    if (awaited != nullptr && requests.front().command.name() == "INFO") std::exchange(awaited, nullptr)();
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

  int calls = 0;                         // Of Execute.
  std::function<void()> meanwhile;       // Called between a commit and its second sending.
  std::function<void()> first;           // Called once, before …
  const RedisScript* before = nullptr;   // … this script.
  std::function<void()> awaited;         // Called once, before it is asked whether there is a replica.
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
    return NewRedisStore("redis", std::move(cluster), {.clock = &clock_, .timeout = std::chrono::seconds(2)});
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
    const auto snapshot = store.Snapshot("run", Producer::kRollout, {.sample = sample}, all);
    if (!snapshot.ok()) return snapshot.status();
    return RowsOf(TestGeometry(), *snapshot);
  }
  // A server for which samples and index are apart.
  std::unique_ptr<Store> NewStoreApart() { return NewStore(std::make_shared<LossyCluster>(Connect(), true)); }
  absl::StatusOr<SampleState> Stat(Store& store, const std::string& sample = "s") {
    return store.Stat("run", Producer::kRollout, {.sample = sample});
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
  std::unique_ptr<RedisProcess> redis_;
  std::unique_ptr<Store> one_, other_;
  RunInfo run_;
};

}  // namespace routing_replay::testing

#endif  // SERVER_STORE_REDIS_REDIS_FAILURE_FIXTURE_H_
