// What a MoE layer's router computes. Plain data without further headers: CUDA code includes it too.
#ifndef ROUTING_REPLAY_TRAINER_ROUTER_CONFIG_H_
#define ROUTING_REPLAY_TRAINER_ROUTER_CONFIG_H_

#include <cstdint>

namespace routing_replay::trainer {

enum class ScoreFunction : uint8_t { kSoftmax = 0, kSigmoid = 1, kSqrtSoftplus = 2 };

// Where Megatron-Core's router rounds to the dtype D of its logits. Both are the same where D is fp32.
enum class Rounding : uint8_t {
  kOnce = 0,      // fp32 inside, one cast to D at the end: Megatron-Core 0.18 and later.
  kEachStep = 1,  // Scores are cast to D; gather, normalisation and scaling run in D: Megatron-Core 0.16 and 0.17.
};

// One MoE layer's router; names in parentheses are Megatron-Core's.
struct RouterConfig {
  ScoreFunction score_function = ScoreFunction::kSoftmax;  // (moe_router_score_function)
  bool pre_softmax = false;                                // (moe_router_pre_softmax) Only with softmax.
  int32_t num_experts = 0;                                 // E
  int32_t top_k = 0;                                       // K
  double scaling_factor = 1.0;                             // c (moe_router_topk_scaling_factor); 0 counts as 1.
  Rounding rounding = Rounding::kOnce;
  // Group limit of a live choice (moe_router_num_groups, moe_router_group_topk); one group: no limit. Replayed rows
  // and pads are not subject to it.
  int32_t num_groups = 1;
  int32_t group_topk = 1;
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_ROUTER_CONFIG_H_
