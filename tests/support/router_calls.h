// Random router calls in every shape that the kernels treat differently.
#ifndef TESTS_SUPPORT_ROUTER_CALLS_H_
#define TESTS_SUPPORT_ROUTER_CALLS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "routing_replay/trainer/router.h"
#include "tests/support/status_matchers.h"
#include "trainer_plugin/replay/compact_id.h"

namespace routing_replay::trainer {

// The outputs of a forward and a backward pass.
template <typename D>
struct Results {
  std::vector<D> probs, grad_logits;
  std::vector<uint8_t> map, chosen;
  RouterCounters counters;

  Results(const RouterConfig& config, int64_t rows)
      : probs(rows * config.num_experts, D(7.0f)),
        grad_logits(probs.size(), D(7.0f)),
        map(probs.size(), 7),
        chosen(rows * config.top_k * IdBytes(config), 7) {}
};

template <typename D>
struct Inputs {
  RouterConfig config;
  std::vector<D> logits, grad_probs;
  std::vector<float> bias;
  std::vector<uint8_t> indices;
  std::vector<RowState> states;
};

// Some logits are equal, rows have all states, and one id is out of range if its type allows it. With `odd_values` the
// first row has NaN, infinities, and values for which the score functions have special cases.
template <typename D>
Inputs<D> RandomInputs(const RouterConfig& config, int64_t rows, bool with_bias, bool odd_values,
                       std::mt19937& random) {
  Inputs<D> in{.config = config};
  std::normal_distribution<float> normal(0, 3);
  std::uniform_int_distribution<int> tenths(-40, 40), state(0, 3), any(0, config.num_experts - 1);
  for (int64_t i = 0; i < rows * config.num_experts; ++i) {
    const bool may_tie = i / config.num_experts % 2 == 1;
    in.logits.push_back(D(may_tie ? static_cast<float>(tenths(random)) / 10 : normal(random)));
    in.grad_probs.push_back(D(normal(random)));
  }
  for (float odd :
       odd_values ? std::vector<float>{NAN, INFINITY, -INFINITY, NAN, -104.0f, 88.0f} : std::vector<float>())
    in.logits[any(random)] = D(odd);
  for (int e = 0; with_bias && e < config.num_experts; ++e) in.bias.push_back(normal(random) / 10);
  in.indices.resize(rows * config.top_k * IdBytes(config));
  std::vector<uint32_t> ids(config.num_experts);
  std::iota(ids.begin(), ids.end(), 0);
  for (int64_t row = 0; row < rows; ++row) {
    std::shuffle(ids.begin(), ids.end(), random);
    for (int k = 0; k < config.top_k; ++k) StoreId(in.indices.data(), IdBytes(config), row * config.top_k + k, ids[k]);
    in.states.push_back(static_cast<RowState>(state(random)));
  }
  in.states[0] = RowState::kUnrecorded;
  in.states.back() = RowState::kReplayed;
  StoreId(in.indices.data(), IdBytes(config), (rows - 1) * config.top_k, config.num_experts);
  return in;
}

template <typename D>
Results<D> RunOnCpu(const Inputs<D>& in) {
  Results<D> out(in.config, static_cast<int64_t>(in.states.size()));
  EXPECT_OK(RouterReplayForward<D>(in.config, {in.logits, in.indices, in.states, in.bias},
                                   {absl::MakeSpan(out.probs), absl::MakeSpan(out.map), absl::MakeSpan(out.chosen)},
                                   out.counters));
  EXPECT_OK(RouterReplayBackward<D>(in.config, {in.logits, out.chosen, in.grad_probs}, absl::MakeSpan(out.grad_logits),
                                    out.counters));
  return out;
}

// The values' bytes. All NaNs get the same bytes, because the sign and payload of a NaN result are not specified.
template <typename D>
std::vector<uint8_t> Bytes(std::vector<D> values) {
  for (D& value : values) {
    if (std::isnan(static_cast<float>(value))) value = D(NAN);
  }
  const auto* first = reinterpret_cast<const uint8_t*>(values.data());
  return {first, first + values.size() * sizeof(D)};
}

// E, K and the group limit.
struct Shape {
  int experts, slots, groups, group_topk;
};

// These shapes give rows of every alignment, rows in one tile and in several, groups of every kind, and from one slot
// (on one of the 32 lanes) to 64 slots (two on every lane).
inline constexpr Shape kShapes[] = {{1, 1, 1, 1},    {5, 5, 1, 1},    {8, 6, 4, 3},       {31, 1, 1, 1},
                                    {33, 33, 1, 1},  {60, 4, 1, 1},   {61, 5, 1, 1},      {63, 6, 7, 2},
                                    {64, 6, 64, 6},  {128, 8, 1, 1},  {256, 8, 8, 4},     {384, 8, 1, 1},
                                    {512, 32, 1, 1}, {514, 33, 2, 1}, {1024, 64, 64, 64}, {2100, 9, 3, 2}};

// Calls `body` with every combination of score function, shape and rounding, and a suitable number of rows.
template <typename Body>
void ForEachConfig(Body&& body) {
  const std::pair<ScoreFunction, bool> modes[] = {{ScoreFunction::kSoftmax, false},
                                                  {ScoreFunction::kSoftmax, true},
                                                  {ScoreFunction::kSigmoid, false},
                                                  {ScoreFunction::kSqrtSoftplus, false}};
  for (const auto& [function, pre] : modes) {
    for (const Shape& shape : kShapes) {
      for (Rounding rounding : {Rounding::kOnce, Rounding::kEachStep}) {
        SCOPED_TRACE(absl::StrCat("function ", static_cast<int>(function), " pre ", pre, " E ", shape.experts, " K ",
                                  shape.slots, " groups ", shape.groups, " rounding ", static_cast<int>(rounding)));
        body(RouterConfig{.score_function = function,
                          .pre_softmax = pre,
                          .num_experts = shape.experts,
                          .top_k = shape.slots,
                          .scaling_factor = 2.5,
                          .rounding = rounding,
                          .num_groups = shape.groups,
                          .group_topk = shape.group_topk},
             shape.slots > 32 ? 2 : 5);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace routing_replay::trainer

#endif  // TESTS_SUPPORT_ROUTER_CALLS_H_
