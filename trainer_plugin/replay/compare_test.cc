
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "routing_replay/trainer/router.h"
#include "tests/support/fiber_warp.h"
#include "tests/support/status_matchers.h"
#include "trainer_plugin/replay/compact_id.h"
#include "trainer_plugin/replay/router_row.h"
#include "trainer_plugin/replay/warp_rows.h"

namespace routing_replay::trainer {

bool operator==(const CompareCounters& a, const CompareCounters& b) {
  return a.rows == b.rows && a.different_rows == b.different_rows && a.disjoint_rows == b.disjoint_rows &&
         a.common_ids == b.common_ids;
}

void PrintTo(const CompareCounters& c, std::ostream* out) {
  *out << c.rows << " rows, " << c.different_rows << " different, " << c.disjoint_rows << " disjoint, " << c.common_ids
       << " ids in common";
}

namespace {

using routing_replay::testing::Fails;
using routing_replay::testing::FiberLane;
using routing_replay::testing::FiberWarp;

// Two choices with rows that are equal, permuted, overlapping and disjoint, and with ids that occur twice.
struct Choices {
  RouterConfig config;
  std::vector<uint8_t> replayed, live;
  std::vector<RowState> states;

  int64_t rows() const { return static_cast<int64_t>(states.size()); }
  std::set<int> Row(const std::vector<uint8_t>& indices, int64_t row) const {
    std::set<int> ids;
    for (int k = 0; k < config.top_k; ++k) {
      ids.insert(static_cast<int>(LoadId(indices.data(), IdBytes(config), row * config.top_k + k)));
    }
    return ids;
  }
};

void StoreRow(const RouterConfig& config, const std::vector<int>& ids, int64_t row, std::vector<uint8_t>& indices) {
  for (int k = 0; k < config.top_k; ++k) StoreId(indices.data(), IdBytes(config), row * config.top_k + k, ids[k]);
}

Choices RandomChoices(const RouterConfig& config, int64_t rows, std::mt19937& random) {
  Choices c{.config = config};
  c.replayed.resize(rows * config.top_k * IdBytes(config));
  c.live = c.replayed;
  const auto pick = [&](int high) { return std::uniform_int_distribution<int>(0, high)(random); };
  std::vector<int> ids(config.num_experts);
  std::iota(ids.begin(), ids.end(), 0);
  for (int64_t row = 0; row < rows; ++row) {
    std::shuffle(ids.begin(), ids.end(), random);
    StoreRow(config, ids, row, c.replayed);
    const int kind = pick(4);
    if (kind == 1) std::reverse(ids.begin(), ids.begin() + config.top_k);
    if (kind == 2) std::shuffle(ids.begin(), ids.end(), random);
    if (kind == 3) std::rotate(ids.begin(), ids.begin() + config.top_k, ids.end());
    if (kind == 4) ids[pick(config.top_k - 1)] = ids[pick(config.top_k - 1)];
    StoreRow(config, ids, row, c.live);
    std::iota(ids.begin(), ids.end(), 0);
    c.states.push_back(static_cast<RowState>(pick(5) > 1 ? 0 : pick(3)));
  }
  if (pick(1) == 0) std::swap(c.replayed, c.live);
  return c;
}

CompareCounters SlowComparison(const Choices& c) {
  CompareCounters counters;
  for (int64_t row = 0; row < c.rows(); ++row) {
    if (c.states[row] != RowState::kReplayed) continue;
    const std::set<int> a = c.Row(c.replayed, row), b = c.Row(c.live, row);
    int64_t common = 0;
    for (int id : a) common += b.count(id);
    ++counters.rows;
    counters.different_rows += a != b;
    counters.disjoint_rows += common == 0;
    counters.common_ids += common;
  }
  return counters;
}

CompareCounters OnWarp(const Choices& c) {
  CompareCounters counters;
  const CompareTensors tensors{IdBytes(c.config), c.replayed.data(), c.states.data(), c.live.data()};
  alignas(kTileAlignment) uint8_t tile[kTileBytes];
  FiberWarp warp;
  for (int64_t row = 0; row < c.rows(); ++row) {
    warp.Run([&](const FiberLane& lane) {
      const RowComparison one = CompareRow(WarpLanes<FiberLane>(lane, tile), c.config, tensors, row);
      if (lane.lane() != 17) return;  // All lanes have the same result.
      counters.rows += one.rows;
      counters.different_rows += one.different_rows;
      counters.disjoint_rows += one.disjoint_rows;
      counters.common_ids += one.common_ids;
    });
  }
  return counters;
}

TEST(CompareChoices, IsAsTheSlowComparison) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 60; ++trial) {
    const int experts = trial % 3 == 0 ? 512 : std::uniform_int_distribution<int>(1, 200)(random);
    const RouterConfig config{.num_experts = experts,
                              .top_k = std::uniform_int_distribution<int>(1, std::min(experts, 64))(random)};
    const Choices c = RandomChoices(config, 12, random);
    CompareCounters counters{.rows = 5, .common_ids = 7};
    ASSERT_OK(CompareChoices(config, c.replayed, c.live, c.states, counters));
    const CompareCounters slow = SlowComparison(c);
    ASSERT_EQ(counters, (CompareCounters{slow.rows + 5, slow.different_rows, slow.disjoint_rows, slow.common_ids + 7}));
    ASSERT_EQ(OnWarp(c), slow);
  }
}

TEST(CompareChoices, RejectsOtherSizes) {
  const RouterConfig config{.num_experts = 8, .top_k = 2};
  const std::vector<uint8_t> ids(6), shorter(4);
  const std::vector<RowState> states(3);
  CompareCounters counters;
  EXPECT_OK(CompareChoices(config, ids, ids, states, counters));
  EXPECT_THAT(CompareChoices(config, ids, shorter, states, counters),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
}

}  // namespace
}  // namespace routing_replay::trainer
