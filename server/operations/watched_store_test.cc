#include "server/operations/watched_store.h"

#include "server/store/conformance/conformance.h"
#include "server/store/conformance/trajectory.h"
#include "server/store/memory/memory_store.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

int64_t StoreErrors(const Metrics& metrics, const std::string& code) {
  for (const auto& [name, value] : metrics.Values()) {
    if (name == "routing_replay_store_errors_total{code=\"" + code + "\"}") return value;
  }
  return 0;
}

// Runs whose blocks are somewhere that is away.
class BrokenKeeper final : public RunKeeper {
 public:
  std::string name() const override { return "broken"; }
  absl::Status Health() const override { return absl::UnavailableError("broken"); }
  DurabilityLevels durability() const override { return {}; }
  void Begin() override {}
  void End() override {}
  absl::StatusOr<RunPlace> Create(const RunInfo&) override { return absl::UnavailableError("no disk"); }
  absl::Status Drop(absl::string_view) override { return absl::OkStatus(); }
};

class WatchedStoreTest : public ::testing::Test {
 protected:
  ByteBudget budget_{int64_t{64} << 20};
  Metrics metrics_;
  NewestVersions versions_{Clock::Real()};
};

TEST_F(WatchedStoreTest, VersionsThatPassAreNoted) {
  const auto store = WatchStore(NewMemoryStore({.budget = &budget_}), metrics_, versions_);
  const RunInfo run = *store->OpenRun("run", &TestGeometry(), std::nullopt);
  EXPECT_EQ(versions_.put(), kUnknownWeightVersion);
  ASSERT_OK(store->Append(MakeAppend(run, {.sample = "a", .rows = {0, 10}, .weight_version = 7})));
  ASSERT_OK(store->Append(MakeAppend(run, {.sample = "b", .rows = {0, 10}, .weight_version = 9})));
  EXPECT_FALSE(store->Append(MakeAppend(run, {.sample = "b", .rows = {50, 60}, .weight_version = 11})).ok());
  EXPECT_EQ(versions_.put(), 9);
  EXPECT_EQ(versions_.get(), kUnknownWeightVersion);
  ASSERT_OK(store->Snapshot("run", Producer::kRollout, {.sample = "a"}, {}));
  EXPECT_EQ(versions_.get(), 7);
  EXPECT_EQ(versions_.lag(), 2);
  ASSERT_OK(store->DropRun("run"));
  EXPECT_EQ(versions_.lag(), 0);
}

// As by OpenRun with resume_at.
TEST_F(WatchedStoreTest, ARunThatGoesBackToACheckpointIsNotBehind) {
  const auto store = WatchStore(NewMemoryStore({.budget = &budget_}), metrics_, versions_);
  const RunInfo run = *store->OpenRun("run", &TestGeometry(), std::nullopt);
  ASSERT_OK(store->Append(MakeAppend(run, {.sample = "late", .rows = {0, 10}, .weight_version = 500})));
  ASSERT_OK(store->Snapshot("run", Producer::kRollout, {.sample = "late"}, {}));
  ASSERT_OK(store->ReleaseGroups("run", std::nullopt, {100, INT64_MAX}));
  ASSERT_OK(store->Append(MakeAppend(run, {.sample = "early", .rows = {0, 10}, .weight_version = 100})));
  ASSERT_OK(store->Snapshot("run", Producer::kRollout, {.sample = "early"}, {}));
  EXPECT_EQ(versions_.lag(), 0);
  // Groups that are done with are no way back.
  ASSERT_OK(store->Append(MakeAppend(run, {.sample = "next", .rows = {0, 10}, .weight_version = 103})));
  ASSERT_OK(store->ReleaseGroups("run", std::nullopt, {0, 1}));
  EXPECT_EQ(versions_.lag(), 3);
}

TEST_F(WatchedStoreTest, RefusalsAreNoErrorsOfTheStore) {
  const auto store = WatchStore(NewMemoryStore({.budget = &budget_}), metrics_, versions_);
  EXPECT_FALSE(store->GetRun("none").ok());
  EXPECT_FALSE(store->OpenRun("bad name", &TestGeometry(), std::nullopt).ok());
  for (const auto& [name, value] : metrics_.Values()) EXPECT_EQ(name.find("store_errors"), std::string::npos) << name;
}

TEST_F(WatchedStoreTest, WhatTheStoreCannotDoIsCounted) {
  auto broken = NewKeptStore({.budget = &budget_}, std::make_shared<BrokenKeeper>(), {});
  ASSERT_OK(broken);
  const auto store = WatchStore(*std::move(broken), metrics_, versions_);
  EXPECT_EQ(store->OpenRun("run", &TestGeometry(), std::nullopt).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(StoreErrors(metrics_, "UNAVAILABLE"), 1);
  EXPECT_EQ(store->Health().message(), "broken");
  EXPECT_EQ(store->name(), "broken");
}

}  // namespace
}  // namespace routing_replay::testing
