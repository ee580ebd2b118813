#include "server/store/memory/memory_store.h"

#include <functional>
#include <thread>

#include "server/store/conformance/conformance.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)

namespace {

// Empty runs never expire, so a client that creates many of them must be charged for them.
TEST(MemoryStoreTest, ARunTakesOfTheBudget) {
  ByteBudget budget(1 << 20);
  const std::unique_ptr<Store> store = NewMemoryStore({.budget = &budget});
  int runs = 0;
  absl::Status status;
  for (; status.ok() && runs < 1000; ++runs) {
    status = store->OpenRun(absl::StrCat("run", runs), &TestGeometry(), std::nullopt).status();
  }
  EXPECT_THAT(status, Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_GT(runs, 10);
  EXPECT_LT(runs, 60);
  EXPECT_EQ(*store->CountRuns(), runs - 1);
  EXPECT_EQ(store->GetTotals().run_bytes, budget.used());
  EXPECT_EQ(store->GetTotals().stored_bytes, 0);
  EXPECT_OK(store->OpenRun("run0", nullptr, std::nullopt));  // To join an existing run takes no memory.
  ASSERT_OK(store->DropRun("run0"));
  EXPECT_OK(store->OpenRun("another", &TestGeometry(), std::nullopt));
  ASSERT_OK_AND_ASSIGN(const auto left, store->ListRuns());
  for (const RunState& run : left) ASSERT_OK(store->DropRun(run.info.run));
  EXPECT_EQ(budget.used(), 0);
}

// The store relies on CRCs that were checked before. Damage that happens later is reported as lost rows and never
// returned.
TEST(MemoryStoreTest, DamagedRowsAreLostAndNeverMerged) {
  ByteBudget budget(1 << 20);
  const std::unique_ptr<Store> store = NewMemoryStore({.budget = &budget});
  const RunInfo run = *store->OpenRun("run", &TestGeometry(), RunOptions{.block_rows = 32});
  AppendCommand damaged = MakeAppend(run, {.rows = {0, 20}});
  damaged.blocks[0].bytes.data()[5] ^= 1;
  ASSERT_OK(store->Append(std::move(damaged)));
  const int64_t used = budget.used();

  const auto is_lost = ::testing::Property(&absl::Status::code, absl::StatusCode::kDataLoss);
  const auto next = store->Append(MakeAppend(run, {.rows = {20, 40}}));
  EXPECT_THAT(next.status(), is_lost);
  EXPECT_EQ(GetErrorDetail(next.status())->committed_rows, 20);
  EXPECT_THAT(store->Append(MakeAppend(run, {.rows = {0, 20}})).status(), is_lost);
  EXPECT_EQ(budget.used(), used);
  const std::vector<RowRange> all{{0, 20}};
  const auto snapshot = store->Snapshot("run", Producer::kRollout, {.sample = "s"}, all);
  ASSERT_OK(snapshot);
  EXPECT_THAT(RowsOf(TestGeometry(), *snapshot).status(), is_lost);
  // A new incarnation may be appended.
  EXPECT_OK(store->Append(MakeAppend(run, {.rows = {0, 40}, .restart_nonce = 1})));
}

TEST(MemoryStoreTest, RunsWithoutOptionsGetTheDefaults) {
  ByteBudget budget(1 << 20);
  const std::unique_ptr<Store> store = NewMemoryStore({.budget = &budget, .default_ttl = std::chrono::hours(3)});
  EXPECT_EQ(store->name(), "memory");
  const RunInfo run = *store->OpenRun("run", &TestGeometry(), std::nullopt);
  EXPECT_EQ(run.options.ttl, std::chrono::hours(3));
  EXPECT_EQ(run.options.codec, TestGeometry().default_codec());
}

// A RunKeeper that calls the test's `meanwhile` on another thread while it creates or drops a run.
class SlowKeeper final : public RunKeeper {
 public:
  SlowKeeper(ByteBudget& budget, const std::function<void()>& meanwhile) : budget_(budget), meanwhile_(meanwhile) {}
  std::string name() const override { return "slow"; }
  DurabilityLevels durability() const override { return {}; }
  void Begin() override {}
  void End() override {}
  absl::StatusOr<std::shared_ptr<BlockHome>> Create(const RunInfo&) override {
    Wait();
    return std::make_shared<MemoryHome>(std::make_shared<RunUsage>(budget_));
  }
  absl::Status Drop(absl::string_view) override {
    Wait();
    return absl::OkStatus();
  }

 private:
  void Wait() const {
    if (meanwhile_) std::thread(meanwhile_).join();
  }

  ByteBudget& budget_;
  const std::function<void()>& meanwhile_;
};

TEST(MemoryStoreTest, RunsAreUsedWhileOthersAreMadeAndDropped) {
  ByteBudget budget(1 << 20);
  std::function<void()> meanwhile;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Store> store,
                       NewKeptStore({.budget = &budget}, std::make_shared<SlowKeeper>(budget, meanwhile), {}));
  const RunInfo run = *store->OpenRun("run", &TestGeometry(), std::nullopt);
  int64_t rows = 0;
  meanwhile = [&] {
    EXPECT_OK(store->OpenRun("run", &TestGeometry(), std::nullopt));
    EXPECT_OK(store->Append(MakeAppend(run, {.rows = {rows, rows + 10}})));
    EXPECT_EQ(store->GetTotals().runs, rows == 0 ? 1 : 2);
    rows += 10;
  };
  EXPECT_OK(store->OpenRun("other", &TestGeometry(), std::nullopt));
  EXPECT_OK(store->DropRun("other"));
  EXPECT_EQ(rows, 20);
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Memory, StoreConformance,
                         ::testing::Values(StoreFactory{
                             "memory",
                             [](ByteBudget& budget, const Clock& clock, HandleFunction handle_of) {
                               return NewMemoryStore(
                                   {.clock = &clock, .budget = &budget, .handle_of = std::move(handle_of)});
                             }}),
                         FactoryName);

}  // namespace routing_replay::testing
