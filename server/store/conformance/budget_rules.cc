// Every byte is charged exactly once, and returned to the budget.
#include "server/store/conformance/conformance.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kRollout = Producer::kRollout;

TEST_P(StoreConformance, WhatIsStoredIsChargedAndComesBack) {
  EXPECT_EQ(Used(), 0);
  Fill("s", 100);
  const SampleState state = Stat("s");
  EXPECT_GE(state.stored_bytes, 100 * geometry().raw_row_bytes());
  EXPECT_EQ(Used(), Charged(state.stored_bytes));
  EXPECT_EQ(store_->GetTotals().stored_bytes, state.stored_bytes);
  const std::vector<SampleRef> refs{{.sample = "s"}};
  ASSERT_OK_AND_ASSIGN(const ReleaseResult released, store_->Release("run", std::nullopt, refs));
  EXPECT_EQ(released.bytes, state.stored_bytes);
  EXPECT_EQ(Used(), 0);
  EXPECT_EQ(store_->GetTotals().stored_bytes, 0);
}

TEST_P(StoreConformance, TheReservationIsUsedFirstAndItsRestGivenBack) {
  Remake(200'000);
  AppendCommand command = MakeAppend(run_, {.rows = {0, 100}});
  command.reservation = *budget_->Reserve(budget_->limit() - budget_->used());
  ASSERT_OK(store_->Append(std::move(command)));
  EXPECT_EQ(Used(), Charged(Stat("s").stored_bytes));
  AppendCommand repeat = MakeAppend(run_, {.rows = {0, 100}});
  repeat.reservation = *budget_->Reserve(1000);
  ASSERT_OK(store_->Append(std::move(repeat)));
  AppendCommand rejected = MakeAppend(run_, {.rows = {200, 300}});
  rejected.reservation = *budget_->Reserve(1000);
  EXPECT_FALSE(store_->Append(std::move(rejected)).ok());
  EXPECT_EQ(Used(), Charged(Stat("s").stored_bytes));
}

TEST_P(StoreConformance, OverBudgetChangesNothing) {
  if (!GetParam().rows_in_budget) GTEST_SKIP() << "the budget does not bound the rows of this store";
  Remake(100'000);
  Rejected({.rows = {0, 20'000}}, kExhausted, Reason::kOverBudget);
  EXPECT_FALSE(Exists("s"));
  EXPECT_EQ(Used(), 0);
  Fill("s", 500);
  const ErrorDetail detail = Rejected({.rows = {500, 20'000}, .group = 3}, kExhausted, Reason::kOverBudget);
  EXPECT_GT(detail.retry_after_ms.value_or(0), 0);
  EXPECT_EQ(detail.committed_rows, 500);
  Rejected({.rows = {0, 20'000}, .restart_nonce = 3}, kExhausted, Reason::kOverBudget);
  // Smaller appends that fit are still accepted, and existing samples can still be sealed and read.
  ASSERT_OK(Append({.rows = {500, 510}}));
  AppendCommand filler;
  filler.reservation = *budget_->Reserve(budget_->limit() - budget_->used());
  EXPECT_OK(store_->Seal("run", kRollout, "s", 511, 0));
  EXPECT_EQ(Read("s"), ExpectedRows(geometry(), {}, 510));
}

TEST_P(StoreConformance, AFullBudgetTakesARestartOfTheSameSize) {
  Fill("s", 500);
  const ByteReservation rest = *budget_->Reserve(budget_->limit() - budget_->used());
  EXPECT_OK(Append({.from = {.tokens = 2, .routes = 2}, .rows = {0, 500}, .restart_nonce = 3}));
  EXPECT_EQ(Read("s"), ExpectedRows(geometry(), {.tokens = 2, .routes = 2}, 500));
}

TEST_P(StoreConformance, ASnapshotKeepsItsBytesCharged) {
  if (!GetParam().rows_in_budget) GTEST_SKIP() << "the budget does not bound the rows of this store";
  Fill("s", 100);
  const int64_t used = Used();
  const std::vector<RowRange> rows{{10, 20}};
  {
    ASSERT_OK_AND_ASSIGN(const SampleSnapshot snapshot, store_->Snapshot("run", kRollout, {.sample = "s"}, rows));
    ASSERT_OK_AND_ASSIGN(const ReleaseResult dropped, store_->DropRun("run"));
    EXPECT_LT(dropped.bytes, used);
    EXPECT_EQ(Used(), used - dropped.bytes);
    EXPECT_GT(Used(), 0);
  }
  EXPECT_EQ(Used(), 0);
}

TEST_P(StoreConformance, AForkCostsNoBytesAndKeepsTheParents) {
  if (!GetParam().forks_share_blocks) GTEST_SKIP() << "forks are copies in this store";
  Fill("parent", 1280);
  const int64_t used = Used();
  ASSERT_OK(Append({.sample = "child", .rows = {1280, 1280}, .prefix = PrefixReference{"parent", 1280, 0}}));
  const int64_t child = Used() - used;
  EXPECT_EQ(child, Stat("child").stored_bytes);
  EXPECT_LT(child, 1280 * geometry().raw_row_bytes() / 4);
  const std::vector<SampleRef> parent{{.sample = "parent"}}, both{{.sample = "parent"}, {.sample = "child"}};
  ASSERT_OK_AND_ASSIGN(const ReleaseResult first, store_->Release("run", std::nullopt, parent));
  EXPECT_LT(first.bytes, used / 4);
  EXPECT_EQ(Used(), used + child - first.bytes);
  EXPECT_EQ(store_->GetTotals().stored_bytes, Used());
  ASSERT_OK_AND_ASSIGN(const ReleaseResult second, store_->Release("run", std::nullopt, both));
  EXPECT_EQ(second.samples, 1);
  EXPECT_EQ(first.bytes + second.bytes, used + child);
  EXPECT_EQ(Used(), 0);
}

TEST_P(StoreConformance, TruncatedRowsComeBack) {
  Fill("s", 1280);
  const int64_t before = Stat("s").stored_bytes;
  ASSERT_OK_AND_ASSIGN(const SampleState state, store_->Truncate("run", kRollout, "s", 640, std::nullopt));
  EXPECT_EQ(Used(), Charged(state.stored_bytes));
  EXPECT_LT(state.stored_bytes, before * 6 / 10);
}

TEST_P(StoreConformance, MetadataIsCharged) {
  AppendSpec spec{.rows = {0, 1000}};
  for (int64_t row = 0; row < 1000; ++row) {
    if (row % 2 == 0) spec.unrecorded.push_back({row, row + 1});
  }
  ASSERT_OK(Append(spec));
  ASSERT_OK(Append({.sample = "plain", .rows = {0, 500}}));
  EXPECT_GE(Stat("s").stored_bytes, Stat("plain").stored_bytes + 500 * static_cast<int64_t>(sizeof(RowRange)));
}

}  // namespace
}  // namespace routing_replay::testing
