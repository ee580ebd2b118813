#ifndef ROUTING_REPLAY_TRAINER_ROUTER_H_
#define ROUTING_REPLAY_TRAINER_ROUTER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/router_config.h"
#include "routing_replay/trainer/row_map.h"

namespace routing_replay::trainer {

// Router replay: the probabilities and the routing map of a MoE layer for experts that were chosen elsewhere.
//
// Only the choice is replayed. Probabilities come from the live logits, so gradients reach the router. The result is
// that of Megatron-Core's topk_routing_with_score_function with its top-k replaced by given ids. One call handles rows
// in all states (RowState). With x the row's logits, j_1 … j_K its ids and c the scaling factor:
//
//   softmax, post:   p_k = c · softmax over the K gathered logits             gradient at the K ids only
//   softmax, pre:    p_k = c · (softmax over all E logits)[j_k]               gradient dense over E
//   sigmoid:         a = 1 / (1 + e^-x), p_k = c · a_k / (Σ a + 1e-20)        gradient at the K ids only
//   sqrtsoftplus:    a = √softplus(x), the rest as sigmoid
//
// With sigmoid and sqrtsoftplus, K = 1 is not renormalised. Logits, probabilities and gradients have one dtype D:
// float, double, Bf16 or Fp16 (a template argument, float by default). All arithmetic is fp32 except where
// RouterConfig::rounding says otherwise, and a live choice ranks fp32 scores whatever D is. The order of sums is fixed,
// so that CPU and GPU agree: slot order in general; a softmax over K first sums runs of 32 terms and then the runs; a
// softmax over all E first makes 32 strided sums and then adds these.
//
// Everything here is pure and thread-safe; nothing is written when a status is not OK.

// INVALID_ARGUMENT (kField, field "router.…") for invalid sizes, and for a group limit that leaves fewer than K
// experts.
absl::Status CheckRouterConfig(const RouterConfig& config);

// Bytes of one compact id.
int32_t IdBytes(const RouterConfig& config);

// N rows of one layer. Ids are compact: u8 for E <= 256, else u16 little-endian.
template <typename D>
struct RouterForwardInput {
  absl::Span<const D> logits;           // [N][E]
  absl::Span<const uint8_t> indices;    // [N][K] compact ids; read only for replayed rows and pads.
  absl::Span<const RowState> states;    // [N]
  absl::Span<const float> expert_bias;  // [E] or empty. Used only for live choices with sigmoid and sqrtsoftplus.
};

// The memory belongs to the caller and is fully overwritten.
template <typename D>
struct RouterForwardOutput {
  absl::Span<D> probs;              // [N][E], zero outside the map.
  absl::Span<uint8_t> routing_map;  // [N][E], 1 where routed, else 0: a bool tensor.
  absl::Span<uint8_t> chosen;       // [N][K] compact ids that were used, or empty. May be the memory of `indices`.
};

// Computes probabilities and routing map. A kReplayed row uses its ids in `indices`; bias and group limit do not
// matter. A kPad row does the same with the filler in `indices`. A kUnrecorded or kLive row makes a live choice: the
// top-k of the scores (plus bias) under the group limit, best first; equal scores go by lower id, and a NaN score ranks
// first, as in torch.topk. A live choice depends only on logits and bias, so a recompute chooses the same experts.
// INVALID_ARGUMENT (kShape, naming the tensor) unless every size matches N = states.size(), E and K.
template <typename D = float>
absl::Status RouterReplayForward(const RouterConfig& config, const RouterForwardInput<D>& input,
                                 const RouterForwardOutput<D>& output, RouterCounters& counters);

template <typename D>
struct RouterBackwardInput {
  absl::Span<const D> logits;        // [N][E], those of the forward call.
  absl::Span<const uint8_t> chosen;  // From the forward call; may be `indices` if no row routed live.
  absl::Span<const D> grad_probs;    // [N][E], gradient of the loss with respect to `probs`.
};

// Writes the gradient of the loss with respect to the logits to `grad_logits`, [N][E], N = logits.size() / E. Of the
// counters only clamped_ids is updated. INVALID_ARGUMENT (kShape) as for RouterReplayForward.
template <typename D = float>
absl::Status RouterReplayBackward(const RouterConfig& config, const RouterBackwardInput<D>& input,
                                  absl::Span<D> grad_logits, RouterCounters& counters);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_ROUTER_H_
