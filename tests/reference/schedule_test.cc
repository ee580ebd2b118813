#include "tests/reference/schedule.h"

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "tests/support/layout_trials.h"
#include "tests/support/random_schedule.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {

void PrintTo(const MicroBatchChunk& of, std::ostream* out) { *out << "(" << of.micro_batch << "," << of.chunk << ")"; }
void PrintTo(const Pass& pass, std::ostream* out) {
  *out << "FRB"[static_cast<int>(pass.kind)] << "(" << pass.micro_batch << "," << pass.chunk << ")";
}

namespace {

using routing_replay::testing::Fails;
using routing_replay::testing::LayoutTrials;
using routing_replay::testing::RandomSchedule;
using ::testing::ElementsAre;

constexpr PassKind F = PassKind::kForward, R = PassKind::kRecompute, B = PassKind::kBackward;

TEST(ScheduleTable, GroupsGoThroughAllChunks) {
  ASSERT_OK_AND_ASSIGN(const auto table, ScheduleTable(4, 2, 2));
  using At = MicroBatchChunk;
  EXPECT_THAT(table, ElementsAre(At{0, 0}, At{1, 0}, At{0, 1}, At{1, 1}, At{2, 0}, At{3, 0}, At{2, 1}, At{3, 1}));
  ASSERT_OK_AND_ASSIGN(const auto short_group, ScheduleTable(3, 2, 2));
  EXPECT_THAT(short_group, ElementsAre(At{0, 0}, At{1, 0}, At{0, 1}, At{1, 1}, At{2, 0}, At{2, 1}));
}

TEST(PassOrder, OneForwardOneBackward) {
  ASSERT_OK_AND_ASSIGN(auto order, PassOrder({.pipeline_size = 3, .pp_rank = 1, .micro_batches = 3}));
  EXPECT_THAT(order, ElementsAre(Pass{F, 0}, Pass{F, 1}, Pass{B, 0}, Pass{F, 2}, Pass{B, 1}, Pass{B, 2}));
  ASSERT_OK_AND_ASSIGN(order, PassOrder({.micro_batches = 2, .recompute = true}));
  EXPECT_THAT(order, ElementsAre(Pass{F, 0}, Pass{R, 0}, Pass{B, 0}, Pass{F, 1}, Pass{R, 1}, Pass{B, 1}));
  ASSERT_OK_AND_ASSIGN(order, PassOrder({.micro_batches = 3, .overlap_expert_communication = true}));
  EXPECT_THAT(order, ElementsAre(Pass{F, 0}, Pass{F, 1}, Pass{B, 0}, Pass{F, 2}, Pass{B, 1}, Pass{B, 2}));
  ASSERT_OK_AND_ASSIGN(order, PassOrder({.pipeline_size = 4, .micro_batches = 2, .forward_only = true}));
  EXPECT_THAT(order, ElementsAre(Pass{F, 0}, Pass{F, 1}));
}

TEST(PassOrder, InterleavedBackwardsStartWithTheLastChunk) {
  ASSERT_OK_AND_ASSIGN(const auto order,
                       PassOrder({.pipeline_size = 2, .pp_rank = 1, .virtual_stages = 2, .micro_batches = 2}));
  EXPECT_THAT(order, ElementsAre(Pass{F, 0, 0}, Pass{F, 1, 0}, Pass{F, 0, 1}, Pass{B, 0, 1}, Pass{F, 1, 1},
                                 Pass{B, 1, 1}, Pass{B, 0, 0}, Pass{B, 1, 0}));
  EXPECT_THAT(PeakInFlight(order, 2), ElementsAre(2, 1));
}

TEST(Schedule, RejectsWhatCannotBe) {
  const auto field = Fails(absl::StatusCode::kInvalidArgument, Reason::kField);
  EXPECT_THAT(ScheduleTable(0, 1, 1), field);
  EXPECT_THAT(ScheduleTable(1, 0, 1), field);
  EXPECT_THAT(ScheduleTable(1, 1, 0), field);
  EXPECT_THAT(ScheduleTable(1 << 30, 1 << 30, 1), field);
  EXPECT_THAT(CountPasses({.pipeline_size = 0}), field);
  EXPECT_THAT(CountPasses({.pipeline_size = 2, .pp_rank = 2}), field);
  EXPECT_THAT(CountPasses({.pipeline_size = 2, .pp_rank = -1}), field);
  // Megatron counts this schedule but rejects a run of it.
  const PipelineSchedule few{.pipeline_size = 4, .virtual_stages = 2, .micro_batches = 6};
  EXPECT_OK(CountPasses(few));
  EXPECT_THAT(PassOrder(few), field);
  EXPECT_THAT(PassOrder({.pipeline_size = 4, .virtual_stages = 2, .micro_batches = 8, .group_size = 3}), field);
  EXPECT_THAT(PassOrder({.pipeline_size = 4, .virtual_stages = 2, .micro_batches = 2}), field);
  EXPECT_THAT(PassOrder({.virtual_stages = 2, .micro_batches = 2}), field);
  EXPECT_THAT(PassOrder({.pipeline_size = 2, .micro_batches = 2, .overlap_expert_communication = true}), field);
}

// A forward pass needs the forward pass of the previous stage; a backward pass needs the backward pass of the next
// stage and its own forward pass. If all ranks follow their orders and wait for each other, they must reach the end.
bool RunsToTheEnd(const std::vector<std::vector<Pass>>& orders, int32_t chunks) {
  const auto ranks = static_cast<int32_t>(orders.size());
  std::set<std::pair<int32_t, int32_t>> forward, backward;  // (micro-batch, stage)
  std::vector<size_t> next(ranks);
  for (bool moved = true; moved;) {
    moved = false;
    for (int32_t p = 0; p < ranks; ++p) {
      for (; next[p] < orders[p].size(); ++next[p], moved = true) {
        const Pass& pass = orders[p][next[p]];
        const int32_t stage = pass.chunk * ranks + p;
        const bool last = stage == ranks * chunks - 1;
        if (pass.kind == F) {
          if (stage > 0 && !forward.contains({pass.micro_batch, stage - 1})) break;
          forward.insert({pass.micro_batch, stage});
        } else {
          if (!forward.contains({pass.micro_batch, stage})) break;
          if (!last && !backward.contains({pass.micro_batch, stage + 1})) break;
          if (pass.kind == B) backward.insert({pass.micro_batch, stage});
        }
      }
    }
  }
  for (int32_t p = 0; p < ranks; ++p) {
    if (next[p] < orders[p].size()) return false;
  }
  return true;
}

// Every pass occurs once; the passes of a chunk ascend in micro-batch in each direction; recomputation is just before
// its backward pass; and as many forward passes precede the first backward pass as CountPasses says.
void CheckOrder(const PipelineSchedule& schedule, const std::vector<Pass>& order) {
  const int32_t chunks = schedule.virtual_stages.value_or(1);
  std::vector<int32_t> forwards(chunks), backwards(chunks);
  for (size_t i = 0; i < order.size(); ++i) {
    const Pass& pass = order[i];
    if (pass.kind == R) {
      ASSERT_EQ(order.at(i + 1), (Pass{B, pass.micro_batch, pass.chunk}));
      continue;
    }
    ASSERT_EQ(pass.micro_batch, (pass.kind == F ? forwards : backwards)[pass.chunk]++);
    ASSERT_TRUE(pass.kind == F || !schedule.recompute || order.at(i - 1).kind == R);
  }
  for (int32_t v = 0; v < chunks; ++v) {
    ASSERT_EQ(forwards[v], schedule.micro_batches);
    ASSERT_EQ(backwards[v], schedule.forward_only ? 0 : schedule.micro_batches);
  }
  const auto counts = CountPasses(schedule);
  ASSERT_EQ(counts->total, int64_t{chunks} * schedule.micro_batches);
  ASSERT_EQ(counts->total, counts->warmup + counts->remaining);
  if (schedule.pipeline_size == 1) return;
  const auto first_backward = std::find_if(order.begin(), order.end(), [](const Pass& p) { return p.kind != F; });
  ASSERT_EQ(first_backward - order.begin(), std::min(counts->total, counts->warmup + 1));
}

TEST(ScheduleProperty, OrdersOfAllRanksFitTogether) {
  std::mt19937 random(61);
  int ran = 0;
  for (int trial = 0; trial < LayoutTrials(); ++trial) {
    PipelineSchedule schedule = RandomSchedule(random);
    const int32_t chunks = schedule.virtual_stages.value_or(1);
    std::vector<std::vector<Pass>> orders;
    for (schedule.pp_rank = 0; schedule.pp_rank < schedule.pipeline_size; ++schedule.pp_rank) {
      const auto order = PassOrder(schedule);
      if (!order.ok()) break;
      ASSERT_NO_FATAL_FAILURE(CheckOrder(schedule, *order)) << "trial " << trial;
      for (int64_t peak : PeakInFlight(*order, chunks)) {
        EXPECT_LE(peak, schedule.forward_only ? 1 : schedule.micro_batches);
        EXPECT_GE(peak, 1);
      }
      orders.push_back(*order);
    }
    if (orders.empty()) continue;
    ASSERT_EQ(orders.size(), static_cast<size_t>(schedule.pipeline_size));
    ASSERT_TRUE(RunsToTheEnd(orders, chunks)) << "trial " << trial;
    ++ran;
  }
  EXPECT_GT(ran, LayoutTrials() / 4);
}

}  // namespace
}  // namespace routing_replay::trainer
