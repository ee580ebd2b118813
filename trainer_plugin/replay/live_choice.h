// The choice of a row that has no route: top-k of the live scores. What is ranked and in what order is shared by the
// CPU code and the CUDA kernels; the search is the CPU's.
#ifndef TRAINER_PLUGIN_REPLAY_LIVE_CHOICE_H_
#define TRAINER_PLUGIN_REPLAY_LIVE_CHOICE_H_

#include <cstdint>

#include "routing_replay/trainer/router_config.h"
#include "trainer_plugin/replay/arithmetic.h"
#include "trainer_plugin/replay/host_device.h"
#include "trainer_plugin/replay/row_math.h"

namespace routing_replay::trainer {

// Most groups of a live choice: they make a bit mask.
inline constexpr int32_t kMaxGroups = 64;

// A strict total order of (score, id): higher scores first, NaN before all, equals by lower id.
RR_HOST_DEVICE inline bool RanksBefore(float a, int32_t id_a, float b, int32_t id_b) {
  const bool a_nan = a != a, b_nan = b != b;
  if (a_nan || b_nan) return a_nan && b_nan ? id_a < id_b : a_nan;
  return a == b ? id_a < id_b : a > b;
}

// The best of what was offered, best first.
struct TopList {
  float scores[kMaxSlots];
  uint16_t ids[kMaxSlots];
  int32_t size = 0;

  void Offer(int32_t capacity, float score, int32_t id) {
    if (size == capacity) {
      if (!RanksBefore(score, id, scores[size - 1], ids[size - 1])) return;
      --size;
    }
    int32_t at = size++;
    for (; at > 0 && RanksBefore(score, id, scores[at - 1], ids[at - 1]); --at) {
      scores[at] = scores[at - 1];
      ids[at] = ids[at - 1];
    }
    scores[at] = score;
    ids[at] = static_cast<uint16_t>(id);
  }
};

// What Megatron ranks by: logits (softmax post), their softmax (pre), or score plus expert bias.
template <typename Math, typename Logits>
struct SelectionScores {
  const RouterConfig& config;
  Logits logits;      // [E]: a pointer, or what can be read like one.
  const float* bias;  // [E] or null.
  SoftmaxNormalizer normalizer;

  template <typename Lanes>
  RR_HOST_DEVICE SelectionScores(const Lanes& lanes, const RouterConfig& config, Logits logits, const float* bias)
      : config(config), logits(logits), bias(bias) {
    if (config.pre_softmax) normalizer = ExpertNormalizer(lanes, logits, config.num_experts);
  }
  RR_HOST_DEVICE float operator()(int32_t expert) const {
    const float x = static_cast<float>(logits[expert]);
    if (config.score_function == ScoreFunction::kSoftmax) {
      return config.pre_softmax ? Math::RoundScore(logits, SoftmaxAt(normalizer, x)) : x;
    }
    const float a = Math::RoundScore(logits, Score(config.score_function, x));
    return bias == nullptr ? a : a + bias[expert];
  }
};

// The groups that compete, as a bit mask: the group_topk with the highest sum of their K / group_topk best scores.
template <typename Math, typename Logits>
uint64_t ChooseGroups(const RouterConfig& config, const SelectionScores<Math, Logits>& scores) {
  const int32_t group_size = config.num_experts / config.num_groups;
  TopList groups;
  for (int32_t group = 0; group < config.num_groups; ++group) {
    TopList best;
    for (int32_t i = 0; i < group_size; ++i) {
      best.Offer(config.top_k / config.group_topk, scores(group * group_size + i), i);
    }
    float sum = 0.0f;
    for (int32_t i = 0; i < best.size; ++i) sum += best.scores[i];
    groups.Offer(config.group_topk, sum, group);
  }
  uint64_t mask = 0;
  for (int32_t i = 0; i < groups.size; ++i) mask |= uint64_t{1} << groups.ids[i];
  return mask;
}

// Writes the K ids, best first. `config` is a checked one. That of a warp: warp_choice.h.
template <typename Math, typename Logits>
void ChooseLive(const OneLane& lane, const RouterConfig& config, Logits logits, const float* bias, uint16_t* ids) {
  const SelectionScores<Math, Logits> scores(lane, config, logits, bias);
  const uint64_t groups = config.num_groups > 1 ? ChooseGroups(config, scores) : 1;
  const int32_t group_size = config.num_experts / config.num_groups;
  TopList best;
  for (int32_t group = 0; group < config.num_groups; ++group) {
    if ((groups >> group & 1) == 0) continue;
    for (int32_t e = group * group_size; e < (group + 1) * group_size; ++e) best.Offer(config.top_k, scores(e), e);
  }
  for (int32_t i = 0; i < config.top_k; ++i) ids[i] = best.ids[i];
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_LIVE_CHOICE_H_
