#include "routing_replay/trainer/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tests/reference/router_reference.h"
#include "tests/support/status_matchers.h"
#include "trainer_plugin/replay/compact_id.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using routing_replay::testing::ReferenceGradient;
using routing_replay::testing::ReferenceLiveChoice;
using routing_replay::testing::ReferenceProbs;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr double kTolerance = 2e-6;

// All tensors of one call, owned.
struct Tensors {
  RouterConfig config;
  std::vector<float> logits, bias, grad_probs;
  std::vector<uint8_t> indices;
  std::vector<RowState> states;
  std::vector<float> probs, grad_logits;
  std::vector<uint8_t> map, chosen;
  RouterCounters counters;

  Tensors(const RouterConfig& config, int64_t rows)
      : config(config),
        logits(rows * config.num_experts),
        grad_probs(logits.size()),
        indices(rows * config.top_k * IdBytes(config)),
        states(rows, RowState::kReplayed),
        probs(logits.size(), -1),
        grad_logits(logits.size(), -1),
        map(logits.size(), 7),
        chosen(indices.size(), 7) {}

  int64_t rows() const { return static_cast<int64_t>(states.size()); }
  void SetId(int64_t row, int k, uint32_t id) { StoreId(indices.data(), IdBytes(config), row * config.top_k + k, id); }
  std::vector<int> Ids(const std::vector<uint8_t>& ids, int64_t row) const {
    std::vector<int> out;
    for (int k = 0; k < config.top_k; ++k) out.push_back(LoadId(ids.data(), IdBytes(config), row * config.top_k + k));
    return out;
  }
  std::vector<double> Row(const std::vector<float>& tensor, int64_t row) const {
    const auto begin = tensor.begin() + row * config.num_experts;
    return {begin, begin + config.num_experts};
  }

  RouterForwardInput<float> input() const { return {logits, indices, states, bias}; }
  RouterForwardOutput<float> output() { return {absl::MakeSpan(probs), absl::MakeSpan(map), absl::MakeSpan(chosen)}; }
  absl::Status Forward() { return RouterReplayForward(config, input(), output(), counters); }
  absl::Status Backward() {
    return RouterReplayBackward(config, {logits, chosen, grad_probs}, absl::MakeSpan(grad_logits), counters);
  }
};

Tensors RandomTensors(const RouterConfig& config, int64_t rows, std::mt19937& random) {
  Tensors t(config, rows);
  std::normal_distribution<float> logit(0, 2), gradient(0, 1);
  for (float& x : t.logits) x = logit(random);
  for (float& g : t.grad_probs) g = gradient(random);
  std::vector<int> ids(config.num_experts);
  std::iota(ids.begin(), ids.end(), 0);
  for (int64_t row = 0; row < rows; ++row) {
    std::shuffle(ids.begin(), ids.end(), random);
    for (int k = 0; k < config.top_k; ++k) t.SetId(row, k, ids[k]);
  }
  return t;
}

// Compares probabilities, map and gradient of every row with the reference for `chosen`.
void ExpectMatchesReference(const Tensors& t) {
  const int experts = t.config.num_experts, slots = t.config.top_k;
  for (int64_t row = 0; row < t.rows(); ++row) {
    const std::vector<int> ids = t.Ids(t.chosen, row);
    const std::vector<double> logits = t.Row(t.logits, row);
    const std::vector<double> p = ReferenceProbs(t.config, logits, ids);
    const std::vector<double> dx = ReferenceGradient(t.config, logits, ids, t.Row(t.grad_probs, row));
    for (int e = 0; e < experts; ++e) {
      const auto slot = std::find(ids.begin(), ids.end(), e) - ids.begin();
      ASSERT_EQ(t.map[row * experts + e], slot < slots) << "row " << row << " expert " << e;
      ASSERT_NEAR(t.probs[row * experts + e], slot < slots ? p[slot] : 0, kTolerance) << "row " << row << " " << e;
      ASSERT_TRUE(slot < slots || t.probs[row * experts + e] == 0) << "row " << row << " expert " << e;
      ASSERT_NEAR(t.grad_logits[row * experts + e], dx[e], 4 * kTolerance) << "row " << row << " expert " << e;
    }
  }
}

struct Mode {
  ScoreFunction function;
  bool pre;
};
constexpr Mode kModes[] = {{ScoreFunction::kSoftmax, false},
                           {ScoreFunction::kSoftmax, true},
                           {ScoreFunction::kSigmoid, false},
                           {ScoreFunction::kSqrtSoftplus, false}};

struct WorkedVector {
  Mode mode;
  std::vector<float> p;   // At ids 4, 1, 6.
  std::vector<float> dx;  // [8]
};

TEST(RouterReplay, WorkedVectors) {
  const std::vector<WorkedVector> vectors = {
      {kModes[0], {0.44933528f, 0.03688369f, 2.01378103f}, {0, -0.01684391f, 0, 0, -0.07040025f, 0, 0.08724416f, 0}},
      {kModes[1],
       {0.31371417f, 0.02575123f, 1.40596936f},
       {-0.05291206f, -0.00665603f, -0.23713541f, -0.03209279f, 0.01302718f, -0.01946526f, 0.33957766f, -0.00434329f}},
      {kModes[2], {1.00237663f, 0.32973216f, 1.16789121f}, {0, -0.08530003f, 0, 0, -0.00984942f, 0, 0.00809425f, 0}},
      {kModes[3], {0.90328669f, 0.38759159f, 1.20912172f}, {0, -0.05826854f, 0, 0, -0.01089881f, 0, 0.02829421f, 0}},
  };
  for (const WorkedVector& v : vectors) {
    SCOPED_TRACE(static_cast<int>(v.mode.function) * 2 + v.mode.pre);
    Tensors t({.score_function = v.mode.function,
               .pre_softmax = v.mode.pre,
               .num_experts = 8,
               .top_k = 3,
               .scaling_factor = 2.5f},
              1);
    t.logits = {0.5f, -1, 2, 0, 1.5f, -0.5f, 3, -2};
    t.grad_probs = {.1f, .2f, .3f, .4f, .5f, .6f, .7f, .8f};
    t.SetId(0, 0, 4), t.SetId(0, 1, 1), t.SetId(0, 2, 6);
    ASSERT_OK(t.Forward());
    ASSERT_OK(t.Backward());
    for (int k = 0; k < 3; ++k) EXPECT_NEAR(t.probs[t.Ids(t.chosen, 0)[k]], v.p[k], 5e-7);
    for (int e = 0; e < 8; ++e) EXPECT_NEAR(t.grad_logits[e], v.dx[e], 2e-7);
    EXPECT_THAT(t.map, ElementsAre(0, 1, 0, 0, 1, 0, 1, 0));
    ExpectMatchesReference(t);
  }
}

struct Shape {
  int experts, slots;
  float scale;
};

TEST(RouterReplay, RandomRowsMatchTheReference) {
  std::mt19937 random(1);
  for (const Mode& mode : kModes) {
    for (const Shape& shape :
         {Shape{1, 1, 1}, {4, 4, 2.5f}, {64, 6, 0}, {128, 1, 2.5f}, {256, 8, 2.5f}, {384, 8, 1}, {512, 64, 1.5f}}) {
      SCOPED_TRACE(absl::StrCat("function ", static_cast<int>(mode.function), " pre ", mode.pre, " E ", shape.experts,
                                " K ", shape.slots));
      Tensors t = RandomTensors({.score_function = mode.function,
                                 .pre_softmax = mode.pre,
                                 .num_experts = shape.experts,
                                 .top_k = shape.slots,
                                 .scaling_factor = shape.scale},
                                5, random);
      ASSERT_OK(t.Forward());
      ASSERT_OK(t.Backward());
      EXPECT_EQ(t.chosen, t.indices);
      EXPECT_EQ(t.counters.replayed_rows, 5);
      EXPECT_EQ(t.counters.clamped_ids, 0);
      ExpectMatchesReference(t);
    }
  }
}

TEST(RouterReplay, MixesRowKindsAndCountsThem) {
  std::mt19937 random(2);
  for (const Mode& mode : kModes) {
    for (int groups : {1, 8}) {
      const RouterConfig config{.score_function = mode.function,
                                .pre_softmax = mode.pre,
                                .num_experts = 64,
                                .top_k = 8,
                                .scaling_factor = 2.5f,
                                .num_groups = groups,
                                .group_topk = (groups + 1) / 2};
      Tensors t = RandomTensors(config, 60, random);
      std::normal_distribution<float> bias(0, 0.2f);
      for (int e = 0; e < 64; ++e) t.bias.push_back(bias(random));
      for (int64_t row = 0; row < 60; ++row) t.states[row] = static_cast<RowState>(row % 4);
      ASSERT_OK(t.Forward());
      ASSERT_OK(t.Backward());
      ExpectMatchesReference(t);
      for (int64_t row = 0; row < 60; ++row) {
        const std::vector<double> b(t.bias.begin(), t.bias.end());
        const bool live = t.states[row] == RowState::kUnrecorded || t.states[row] == RowState::kLive;
        const std::vector<int> expected =
            live ? ReferenceLiveChoice(config, t.Row(t.logits, row), b) : t.Ids(t.indices, row);
        EXPECT_EQ(t.Ids(t.chosen, row), expected) << "row " << row;
      }
      EXPECT_EQ(t.counters.replayed_rows, 15);
      EXPECT_EQ(t.counters.live_rows, 30);
      EXPECT_EQ(t.counters.pad_rows, 15);
    }
  }
}

TEST(RouterReplay, BiasAndGroupsDoNotTouchReplayedRows) {
  std::mt19937 random(3);
  Tensors plain = RandomTensors({.score_function = ScoreFunction::kSigmoid, .num_experts = 16, .top_k = 4}, 10, random);
  Tensors biased = plain;
  biased.bias.assign(16, 3.0f);
  biased.config.num_groups = 4;
  biased.config.group_topk = 2;
  ASSERT_OK(plain.Forward());
  ASSERT_OK(biased.Forward());
  EXPECT_EQ(plain.probs, biased.probs);
  EXPECT_EQ(plain.map, biased.map);
}

TEST(RouterReplay, LiveTiesGoToLowerIdsAndNanStaysLegal) {
  Tensors t({.num_experts = 6, .top_k = 3}, 2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  t.logits = {1, 2, 1, 2, 1, 0, nan, 5, nan, nan, nan, 9};
  t.states.assign(2, RowState::kUnrecorded);
  ASSERT_OK(t.Forward());
  EXPECT_THAT(t.Ids(t.chosen, 0), ElementsAre(1, 3, 0));
  EXPECT_THAT(t.Ids(t.chosen, 1), ElementsAre(0, 2, 3));
}

TEST(RouterReplay, ClampsAndCountsIdsOutOfRange) {
  for (int experts : {8, 300}) {
    Tensors t({.num_experts = experts, .top_k = 2}, 2);
    t.SetId(0, 0, experts), t.SetId(0, 1, 3), t.SetId(1, 0, 1), t.SetId(1, 1, experts == 8 ? 255 : 65535);
    ASSERT_OK(t.Forward());
    EXPECT_EQ(t.counters.clamped_ids, 2);
    EXPECT_THAT(t.Ids(t.chosen, 0), ElementsAre(experts - 1, 3));
    EXPECT_THAT(t.Ids(t.chosen, 1), ElementsAre(1, experts - 1));
    t.chosen = t.indices;
    ASSERT_OK(t.Backward());
    EXPECT_EQ(t.counters.clamped_ids, 4);
  }
}

TEST(RouterReplay, UnrecordedRowsDoNotReadTheirIndices) {
  Tensors t({.num_experts = 8, .top_k = 2}, 1);
  t.SetId(0, 0, 200), t.SetId(0, 1, 200);
  t.states[0] = RowState::kUnrecorded;
  ASSERT_OK(t.Forward());
  EXPECT_EQ(t.counters.clamped_ids, 0);
}

TEST(RouterReplay, ChosenMayReplaceTheIndices) {
  std::mt19937 random(4);
  Tensors apart = RandomTensors({.num_experts = 300, .top_k = 8}, 30, random);
  for (int64_t row = 0; row < 30; row += 2) apart.states[row] = RowState::kUnrecorded;
  Tensors in_place = apart;
  ASSERT_OK(apart.Forward());
  RouterForwardOutput<float> output = in_place.output();
  output.chosen = absl::MakeSpan(in_place.indices);
  for (int pass = 0; pass < 2; ++pass) {  // The second is a recompute.
    ASSERT_OK(RouterReplayForward(in_place.config, in_place.input(), output, in_place.counters));
    EXPECT_EQ(in_place.indices, apart.chosen);
    EXPECT_EQ(in_place.probs, apart.probs);
  }
}

TEST(RouterReplay, SqrtSoftplusStaysFiniteWhereTheScoreVanishes) {
  Tensors t({.score_function = ScoreFunction::kSqrtSoftplus, .num_experts = 4, .top_k = 2}, 1);
  t.logits = {-200, 1, 25, -1};
  t.grad_probs = {1, 2, 3, 4};
  t.SetId(0, 0, 0), t.SetId(0, 1, 2);
  ASSERT_OK(t.Forward());
  ASSERT_OK(t.Backward());
  for (float g : t.grad_logits) EXPECT_TRUE(std::isfinite(g));
  EXPECT_EQ(t.grad_logits[1], 0);
  EXPECT_NEAR(t.probs[2], 1, kTolerance);
}

TEST(RouterReplay, SqrtSoftplusKeepsItsGradientWhereTheScoreIsTiny) {
  Tensors t({.score_function = ScoreFunction::kSqrtSoftplus, .num_experts = 2, .top_k = 1}, 1);
  t.logits = {-80, 0};
  t.grad_probs = {1, 1};
  ASSERT_OK(t.Forward());
  ASSERT_OK(t.Backward());
  const double a = std::exp(-40.0);  // √softplus(x) → e^(x/2), whose derivative is half of it.
  EXPECT_NEAR(t.probs[0] / a, 1, 1e-5);
  EXPECT_NEAR(t.grad_logits[0] / a, 0.5, 1e-5);
}

TEST(RouterReplay, NoRowsIsFine) {
  Tensors t({.num_experts = 4, .top_k = 2}, 0);
  EXPECT_OK(t.Forward());
  EXPECT_OK(t.Backward());
}

TEST(RouterReplay, RejectsTensorsThatDoNotFit) {
  const auto forward = [](auto change) {
    Tensors t({.num_experts = 4, .top_k = 2}, 3);
    change(t);
    const absl::Status status = t.Forward();
    EXPECT_THAT(t.probs, Each(-1));
    EXPECT_EQ(t.counters.replayed_rows, 0);
    return status;
  };
  const auto shape = Fails(absl::StatusCode::kInvalidArgument, Reason::kShape);
  EXPECT_THAT(forward([](Tensors& t) { t.indices.resize(2 * 2); }), shape);  // Fewer rows than N.
  EXPECT_THAT(forward([](Tensors& t) { t.indices.resize(4 * 2); }), shape);  // More rows than N.
  EXPECT_THAT(forward([](Tensors& t) { t.indices.resize(3 * 1); }), shape);  // Fewer than K columns.
  EXPECT_THAT(forward([](Tensors& t) { t.indices.resize(3 * 3); }), shape);  // More than K columns.
  EXPECT_THAT(forward([](Tensors& t) { t.logits.resize(8); }), shape);
  EXPECT_THAT(forward([](Tensors& t) { t.states.resize(4); }), shape);
  EXPECT_THAT(forward([](Tensors& t) { t.bias.resize(3); }), shape);
  EXPECT_THAT(forward([](Tensors& t) { t.probs.resize(11); }), shape);
  EXPECT_THAT(forward([](Tensors& t) { t.map.resize(13); }), shape);
  EXPECT_THAT(forward([](Tensors& t) { t.chosen.resize(5); }), shape);
  const auto backward = [](auto change) {
    Tensors t({.num_experts = 4, .top_k = 2}, 3);
    change(t);
    const absl::Status status = t.Backward();
    EXPECT_THAT(t.grad_logits, Each(-1));
    return status;
  };
  EXPECT_THAT(backward([](Tensors& t) { t.logits.resize(11); }), shape);
  EXPECT_THAT(backward([](Tensors& t) { t.chosen.resize(4); }), shape);
  EXPECT_THAT(backward([](Tensors& t) { t.grad_probs.resize(16); }), shape);
  EXPECT_THAT(backward([](Tensors& t) { t.grad_logits.resize(8); }), shape);
}

TEST(RouterConfig, RejectsWhatCannotBe) {
  const auto field = Fails(absl::StatusCode::kInvalidArgument, Reason::kField);
  const auto check = [](auto change) {
    RouterConfig config{.num_experts = 16, .top_k = 4};
    EXPECT_OK(CheckRouterConfig(config));
    change(config);
    return CheckRouterConfig(config);
  };
  EXPECT_THAT(check([](RouterConfig& c) { c.num_experts = 0; }), field);
  EXPECT_THAT(check([](RouterConfig& c) { c.num_experts = 65536; }), field);
  EXPECT_THAT(check([](RouterConfig& c) { c.top_k = 0; }), field);
  EXPECT_THAT(check([](RouterConfig& c) { c.top_k = 17; }), field);
  EXPECT_THAT(check([](RouterConfig& c) { c.num_experts = 100, c.top_k = 65; }), field);
  EXPECT_THAT(check([](RouterConfig& c) { c.score_function = ScoreFunction::kSigmoid, c.pre_softmax = true; }), field);
  EXPECT_THAT(check([](RouterConfig& c) { c.scaling_factor = std::numeric_limits<float>::infinity(); }), field);
  EXPECT_THAT(check([](RouterConfig& c) { c.num_groups = 0; }), field);
  EXPECT_THAT(check([](RouterConfig& c) { c.num_groups = 3; }), field);
  EXPECT_THAT(check([](RouterConfig& c) { c.num_groups = 2, c.group_topk = 3; }), field);
  EXPECT_THAT(check([](RouterConfig& c) { c.num_groups = 8, c.group_topk = 1; }), field);
}

}  // namespace
}  // namespace routing_replay::trainer
