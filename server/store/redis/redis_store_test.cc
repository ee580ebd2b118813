#include "server/store/redis/redis_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/conformance/conformance.h"
#include "tests/support/redis/redis_cluster_process.h"
#include "tests/support/redis/redis_process.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

// Redis servers, started at the first use and shared by all tests of this process.
RedisProcess& SingleRedis() {
  static const std::unique_ptr<RedisProcess> redis = *RedisProcess::Start();
  return *redis;
}

RedisClusterProcess& RedisNodes() {
  static const std::unique_ptr<RedisClusterProcess> nodes = *RedisClusterProcess::Start();
  return *nodes;
}

std::shared_ptr<RedisCluster> Connect(const RedisEndpoint& endpoint) {
  auto cluster = RedisCluster::Connect(endpoint, {}, Clock::Real().Now() + std::chrono::seconds(10));
  EXPECT_OK(cluster);
  return *std::move(cluster);
}

// Deletes everything that the previous test left. Each master has some of so many keys.
void Empty(RedisCluster& cluster) {
  std::vector<RedisRequest> requests;
  for (int key = 0; key < 100; ++key) {
    requests.push_back({.command = RedisCommand({"FLUSHALL"}), .key = absl::StrCat(key)});
  }
  for (const RedisResult& result : cluster.Execute(requests, Clock::Real().Now() + std::chrono::seconds(10))) {
    EXPECT_OK(result.reply);
  }
}

// Two of our servers over the same Redis. Calls go to each of them in turn, so each must see what the other did.
class Pair final : public Store {
 public:
  Pair(std::unique_ptr<Store> one, std::unique_ptr<Store> other) : stores_{std::move(one), std::move(other)} {}

  std::string name() const override { return stores_[0]->name(); }
  absl::StatusOr<RunInfo> OpenRun(absl::string_view run, const Geometry* geometry,
                                  const std::optional<RunOptions>& options) override {
    return Next().OpenRun(run, geometry, options);
  }
  absl::StatusOr<RunInfo> GetRun(absl::string_view run) override { return Next().GetRun(run); }
  absl::StatusOr<RunState> StatRun(absl::string_view run) override { return Next().StatRun(run); }
  absl::StatusOr<RunPage> ListRuns(absl::string_view page_token, size_t limit) override {
    return Next().ListRuns(page_token, limit);
  }
  absl::StatusOr<int64_t> CountRuns() override { return Next().CountRuns(); }
  absl::StatusOr<ReleaseResult> DropRun(absl::string_view run) override { return Next().DropRun(run); }
  absl::StatusOr<AppendAck> Append(AppendCommand command) override { return Next().Append(std::move(command)); }
  absl::StatusOr<SampleState> Seal(absl::string_view run, Producer producer, absl::string_view sample,
                                   int64_t num_tokens, int64_t revision) override {
    return Next().Seal(run, producer, sample, num_tokens, revision);
  }
  absl::StatusOr<SampleState> Truncate(absl::string_view run, Producer producer, absl::string_view sample, int64_t rows,
                                       std::optional<int64_t> expected_revision) override {
    return Next().Truncate(run, producer, sample, rows, expected_revision);
  }
  absl::StatusOr<SampleSnapshot> Snapshot(absl::string_view run, Producer producer, const SampleRef& sample,
                                          absl::Span<const RowRange> rows, const AdmitSnapshot& admit) override {
    return Next().Snapshot(run, producer, sample, rows, admit);
  }
  absl::StatusOr<SampleState> Stat(absl::string_view run, Producer producer, const SampleRef& sample) override {
    return Next().Stat(run, producer, sample);
  }
  absl::Status StatEach(absl::string_view run, Producer producer, absl::Span<const SampleRef> samples,
                        const TakeState& take) override {
    return Next().StatEach(run, producer, samples, take);
  }
  absl::StatusOr<ListPage> List(absl::string_view run, Producer producer, std::optional<GroupRange> groups,
                                size_t limit, absl::string_view page_token) override {
    return Next().List(run, producer, groups, limit, page_token);
  }
  absl::StatusOr<ReleaseResult> Release(absl::string_view run, std::optional<Producer> producer,
                                        absl::Span<const SampleRef> samples) override {
    return Next().Release(run, producer, samples);
  }
  absl::StatusOr<ReleaseResult> ReleaseGroups(absl::string_view run, std::optional<Producer> producer,
                                              GroupRange groups) override {
    return Next().ReleaseGroups(run, producer, groups);
  }
  absl::StatusOr<std::unique_ptr<Watch>> WatchSample(absl::string_view run, Producer producer, const SampleRef& sample,
                                                     std::function<void()> changed) override {
    return Next().WatchSample(run, producer, sample, std::move(changed));
  }
  int64_t Sweep(int64_t limit) override { return Next().Sweep(limit); }
  Totals GetTotals() override { return Next().GetTotals(); }

 private:
  Store& Next() { return *stores_[turn_++ % 2]; }

  const std::array<std::unique_ptr<Store>, 2> stores_;
  std::atomic<uint32_t> turn_{0};
};

StoreFactory Factory(const std::string& name, const std::function<RedisEndpoint()>& endpoint,
                     std::pair<uint32_t, uint32_t> model_seeds, bool pair = false) {
  const auto make = [endpoint, pair](ByteBudget& budget, const Clock& clock,
                                     std::function<int64_t(absl::string_view)> handle_of) {
    std::shared_ptr<RedisCluster> cluster = Connect(endpoint());
    Empty(*cluster);
    const RedisStoreOptions options{.clock = &clock, .handle_of = std::move(handle_of)};
    std::unique_ptr<Store> store = NewRedisStore(cluster, options);
    if (!pair) return store;
    return std::unique_ptr<Store>(std::make_unique<Pair>(std::move(store), NewRedisStore(cluster, options)));
  };
  return {.name = name,
          .make = make,
          .rows_in_budget = false,
          .forks_share_blocks = false,
          .one_server = !pair,
          .watches_hear_at_once = false,
          .model_seeds = model_seeds,
          .missing = NoRedisReason()};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Redis, StoreConformance,
                         ::testing::Values(Factory("redis", [] { return SingleRedis().endpoint(); }, {0, 8})),
                         FactoryName);
INSTANTIATE_TEST_SUITE_P(RedisPair, StoreConformance,
                         ::testing::Values(Factory(
                             "redis_pair", [] { return SingleRedis().endpoint(); }, {8, 16}, true)),
                         FactoryName);
INSTANTIATE_TEST_SUITE_P(RedisCluster, StoreConformance,
                         ::testing::Values(Factory("redis_cluster", [] { return RedisNodes().endpoint(); }, {16, 28})),
                         FactoryName);

}  // namespace routing_replay::testing
