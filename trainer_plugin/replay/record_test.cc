#include "routing_replay/trainer/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/reference/router_reference.h"
#include "tests/support/fiber_warp.h"
#include "tests/support/status_matchers.h"
#include "trainer_plugin/replay/compact_id.h"
#include "trainer_plugin/replay/router_check.h"
#include "trainer_plugin/replay/router_row.h"
#include "trainer_plugin/replay/warp_rows.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using routing_replay::testing::FiberLane;
using routing_replay::testing::FiberWarp;
using routing_replay::testing::ReferenceLiveChoice;
using ::testing::ElementsAre;

constexpr int kRows = 20;

std::vector<int> RowIds(const RouterConfig& config, const std::vector<uint8_t>& indices, int64_t row) {
  std::vector<int> ids;
  for (int k = 0; k < config.top_k; ++k) {
    ids.push_back(static_cast<int>(LoadId(indices.data(), IdBytes(config), row * config.top_k + k)));
  }
  return ids;
}

std::vector<uint8_t> RecordOnWarp(const RouterConfig& config, const std::vector<float>& logits,
                                  const std::vector<float>& bias) {
  std::vector<uint8_t> indices(kRows * config.top_k * IdBytes(config));
  const RecordTensors<const float*> tensors{IdBytes(config), logits.data(), bias.data(), indices.data()};
  alignas(kTileAlignment) uint8_t tile[kTileBytes];
  FiberWarp warp;
  for (int64_t row = 0; row < kRows; ++row) {
    warp.Run([&](const FiberLane& lane) {
      RecordRow<FloatArithmetic<float>>(WarpLanes<FiberLane>(lane, tile), config, tensors, row);
    });
  }
  return indices;
}

TEST(RecordLive, IsTheReferencesChoiceInItsOrder) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 2);
  for (const RouterConfig& config :
       {RouterConfig{.score_function = ScoreFunction::kSigmoid,
       .num_experts = 256,
       .top_k = 8,
       .num_groups = 8,
       .group_topk = 4},
        RouterConfig{.num_experts = 384, .top_k = 6}, RouterConfig{.pre_softmax = true, .num_experts = 60, .top_k = 4},
        RouterConfig{.score_function = ScoreFunction::kSqrtSoftplus, .num_experts = 8, .top_k = 8}}) {
    std::vector<float> logits(kRows * config.num_experts), bias(config.num_experts);
    for (float& x : logits) x = normal(random);
    for (float& b : bias) b = normal(random) / 10;
    std::vector<uint8_t> indices(kRows * config.top_k * IdBytes(config));
    ASSERT_OK(RecordLive<float>(config, logits, bias, absl::MakeSpan(indices)));
    for (int64_t row = 0; row < kRows; ++row) {
      const auto begin = logits.begin() + row * config.num_experts;
      ASSERT_EQ(RowIds(config, indices, row),
                ReferenceLiveChoice(config, {begin, begin + config.num_experts}, {bias.begin(), bias.end()}));
    }
    EXPECT_EQ(RecordOnWarp(config, logits, bias), indices);
  }
}

TEST(RecordLive, RefusesOtherSizes) {
  const RouterConfig config{.num_experts = 8, .top_k = 2};
  std::vector<float> logits(16), bias(7);
  std::vector<uint8_t> indices(4), longer(5);
  EXPECT_OK(RecordLive<float>(config, logits, {}, absl::MakeSpan(indices)));
  EXPECT_THAT(RecordLive<float>(config, logits, bias, absl::MakeSpan(indices)),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  EXPECT_THAT(RecordLive<float>(config, logits, {}, absl::MakeSpan(longer)),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  EXPECT_THAT(RecordLive<float>({.num_experts = 8, .top_k = 9}, logits, {}, absl::MakeSpan(indices)),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

template <typename Id>
void ExpectRecorded() {
  const RouterConfig config{.num_experts = 100, .top_k = 3};
  const std::vector<Id> ids = {7, 99, 0, 100, 3, static_cast<Id>(-1)};
  std::vector<uint8_t> indices(6);
  int64_t clamped = 5;
  ASSERT_OK(RecordIds<Id>(config, ids, absl::MakeSpan(indices), clamped));
  EXPECT_THAT(RowIds(config, indices, 0), ElementsAre(7, 99, 0));
  EXPECT_THAT(RowIds(config, indices, 1), ElementsAre(99, 3, static_cast<Id>(-1) < 0 ? 0 : 99));
  EXPECT_EQ(clamped, 7);
}

TEST(RecordIds, KeepsSlotsAndClampsIds) {
  ExpectRecorded<int64_t>();
  ExpectRecorded<int32_t>();
  ExpectRecorded<int16_t>();
  ExpectRecorded<uint8_t>();
}

TEST(RecordIds, WideIdsAreNotCutToTheirLowBits) {
  const RouterConfig config{.num_experts = 65535, .top_k = 1};
  const std::vector<int64_t> ids = {65534, (int64_t{1} << 40) + 3, INT64_MIN};
  std::vector<uint8_t> indices(6);
  int64_t clamped = 0;
  ASSERT_OK(RecordIds<int64_t>(config, ids, absl::MakeSpan(indices), clamped));
  EXPECT_THAT(indices, ElementsAre(0xFE, 0xFF, 0xFE, 0xFF, 0, 0));
  EXPECT_EQ(clamped, 2);
  EXPECT_THAT(RecordIds<int64_t>(config, ids, absl::MakeSpan(indices).first(4), clamped),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
}

}  // namespace
}  // namespace routing_replay::trainer
