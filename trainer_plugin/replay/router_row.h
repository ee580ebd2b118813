// The work of a router on one row, from ids to probabilities and back, shared by the CPU code and the CUDA kernels:
// replay forward and backward.
#ifndef TRAINER_PLUGIN_REPLAY_ROUTER_ROW_H_
#define TRAINER_PLUGIN_REPLAY_ROUTER_ROW_H_

#include <cstdint>

#include "routing_replay/trainer/router_config.h"
#include "routing_replay/trainer/row_map.h"
#include "trainer_plugin/replay/compact_id.h"
#include "trainer_plugin/replay/row_math.h"

namespace routing_replay::trainer {

// T is the dtype of the logits, any type that converts to float and back. Math and Lanes are explained in row_math.h:
// every lane of a row calls these functions with the same arguments. Arrays of ids, probabilities and gradients hold
// the slots of this lane. Configurations must have been checked.

// Tensors as in router.h; those that are optional there may be null.
template <typename T>
struct RouterForwardTensors {
  int32_t id_bytes;  // Of one compact id.
  const T* logits;
  const uint8_t* indices;
  const RowState* states;
  const float* expert_bias;
  T* probs;
  uint8_t* routing_map;
  uint8_t* chosen;
};

template <typename T>
struct RouterBackwardTensors {
  int32_t id_bytes;
  const T* logits;
  const uint8_t* chosen;
  const T* grad_probs;
  T* grad_logits;
};

// Returns true if a row in this state takes the live choice.
RR_HOST_DEVICE inline bool ChoosesLive(RowState state) {
  return state == RowState::kUnrecorded || state == RowState::kLive;
}

// Returns the counter for rows in this state.
RR_HOST_DEVICE inline int64_t& RowsOfState(RouterCounters& counters, RowState state) {
  if (ChoosesLive(state)) return counters.live_rows;
  return state == RowState::kPad ? counters.pad_rows : counters.replayed_rows;
}

// Reads the lane's slots of the ids of row `row`, clamps ids >= E to E - 1, and returns how many it clamped.
template <typename Lanes>
RR_HOST_DEVICE inline int32_t LoadRowIds(const Lanes& lanes, const RouterConfig& config, const uint8_t* ids,
                                         int32_t id_bytes, int64_t row, uint16_t* out) {
  const uint32_t last = static_cast<uint32_t>(config.num_experts) - 1;
  int32_t clamped = 0;
  lanes.ForEachSlot(config.top_k, [&](int32_t i, int32_t slot) {
    const uint32_t id = LoadId(ids, id_bytes, row * config.top_k + slot);
    clamped += id > last;
    out[i] = static_cast<uint16_t>(id > last ? last : id);
  });
  return clamped;
}

template <typename Lanes>
RR_HOST_DEVICE inline void StoreRowIds(const Lanes& lanes, const RouterConfig& config, const uint16_t* ids,
                                       int32_t id_bytes, int64_t row, uint8_t* out) {
  lanes.ForEachSlot(config.top_k,
                    [&](int32_t i, int32_t slot) { StoreId(out, id_bytes, row * config.top_k + slot, ids[i]); });
}

// Computes the K scaled probabilities p of a row.
template <typename Math, typename Lanes, typename T, typename Real = typename Math::Real>
RR_HOST_DEVICE inline void RowProbabilities(const Lanes& lanes, const RouterConfig& config, const T* logits,
                                            const uint16_t* ids, Real* p) {
  const Real scale = static_cast<Real>(EffectiveScale(config));
  float x[Lanes::kSlotsPerLane];
  lanes.ForEachSlot(config.top_k, [&](int32_t i, int32_t) { x[i] = static_cast<float>(logits[ids[i]]); });
  if (config.pre_softmax) {
    const SoftmaxNormalizer normalizer = ExpertNormalizer(lanes, logits, config.num_experts);
    lanes.ForEachSlot(config.top_k, [&](int32_t i, int32_t) {
      p[i] = Math::Round(Math::Round(SoftmaxAt(normalizer, x[i])) * scale);
    });
  } else if (config.score_function == ScoreFunction::kSoftmax) {
    PostSoftmaxForward<Math>(lanes, x, config.top_k, scale, p);
  } else {
    ScoreForward<Math>(lanes, config.score_function, x, config.top_k, scale, p);
  }
}

// Finds the ids of a row by its state: the given ids, or the live choice. Returns how many ids the lane clamped.
template <typename Math, typename Lanes, typename T>
RR_HOST_DEVICE inline int32_t FindRowIds(const Lanes& lanes, const RouterConfig& config,
                                         const RouterForwardTensors<T>& tensors, int64_t row, uint16_t* ids) {
  if (!ChoosesLive(tensors.states[row])) return LoadRowIds(lanes, config, tensors.indices, tensors.id_bytes, row, ids);
  ChooseLive<Math>(lanes, config, tensors.logits + row * config.num_experts, tensors.expert_bias, ids);
  return 0;
}

// The forward pass of a row: writes all outputs that router.h describes. Returns how many ids the lane clamped.
template <typename Math, typename Lanes, typename T>
RR_HOST_DEVICE inline int32_t ForwardRow(const Lanes& lanes, const RouterConfig& config,
                                         const RouterForwardTensors<T>& tensors, int64_t row) {
  const int64_t first = row * config.num_experts;
  uint16_t ids[Lanes::kSlotsPerLane];
  uint8_t ones[Lanes::kSlotsPerLane];
  typename Math::Real p[Lanes::kSlotsPerLane];
  T probs[Lanes::kSlotsPerLane];
  const int32_t clamped = FindRowIds<Math>(lanes, config, tensors, row, ids);
  RowProbabilities<Math>(lanes, config, tensors.logits + first, ids, p);
  lanes.ForEachSlot(config.top_k, [&](int32_t i, int32_t) {
    probs[i] = static_cast<T>(p[i]);
    ones[i] = 1;
  });
  lanes.WriteRow(tensors.probs + first, config.num_experts, ZeroFill(), ids, probs, config.top_k);
  lanes.WriteRow(tensors.routing_map + first, config.num_experts, ZeroFill(), ids, ones, config.top_k);
  if (tensors.chosen != nullptr) StoreRowIds(lanes, config, ids, tensors.id_bytes, row, tensors.chosen);
  return clamped;
}

// With softmax before the choice, all E logits get a gradient: ∂x_e = s_e (g_e [e chosen] − Σ_k g_k s_jk).
template <typename Math, typename Lanes, typename T>
RR_HOST_DEVICE inline void PreSoftmaxBackwardRow(const Lanes& lanes, const RouterConfig& config, const T* logits,
                                                 const uint16_t* ids, const T* grad_probs, T* grad_logits) {
  using Real = typename Math::Real;
  const Real scale = static_cast<Real>(EffectiveScale(config));
  const SoftmaxNormalizer normalizer = ExpertNormalizer(lanes, logits, config.num_experts);
  const auto score = [&](int32_t e) { return SoftmaxAt(normalizer, static_cast<float>(logits[e])); };
  float g[Lanes::kSlotsPerLane], s[Lanes::kSlotsPerLane], terms[Lanes::kSlotsPerLane];
  T dx[Lanes::kSlotsPerLane];
  lanes.ForEachSlot(config.top_k, [&](int32_t i, int32_t) {
    g[i] = static_cast<float>(Math::Round(static_cast<Real>(grad_probs[ids[i]]) * scale));
    s[i] = score(ids[i]);
    terms[i] = g[i] * s[i];
  });
  const float dot = lanes.SumSlots(terms, 0, config.top_k);
  lanes.ForEachSlot(config.top_k, [&](int32_t i, int32_t) { dx[i] = static_cast<T>((g[i] - dot) * s[i]); });
  lanes.WriteRow(
      grad_logits, config.num_experts, [&](int32_t e) { return static_cast<T>(-dot * score(e)); }, ids, dx,
      config.top_k);
}

// Computes the gradient with respect to the E logits of a row; fully overwrites the row of grad_logits. Returns how
// many ids the lane clamped.
template <typename Math, typename Lanes, typename T>
RR_HOST_DEVICE inline int32_t BackwardRow(const Lanes& lanes, const RouterConfig& config,
                                          const RouterBackwardTensors<T>& tensors, int64_t row) {
  using Real = typename Math::Real;
  const int64_t first = row * config.num_experts;
  const T* logits = tensors.logits + first;
  const T* grad_probs = tensors.grad_probs + first;
  uint16_t ids[Lanes::kSlotsPerLane];
  const int32_t clamped = LoadRowIds(lanes, config, tensors.chosen, tensors.id_bytes, row, ids);
  if (config.pre_softmax) {
    PreSoftmaxBackwardRow<Math>(lanes, config, logits, ids, grad_probs, tensors.grad_logits + first);
    return clamped;
  }
  const Real scale = static_cast<Real>(EffectiveScale(config));
  float x[Lanes::kSlotsPerLane], dx[Lanes::kSlotsPerLane];
  Real g[Lanes::kSlotsPerLane];
  T rounded[Lanes::kSlotsPerLane];
  lanes.ForEachSlot(config.top_k, [&](int32_t i, int32_t) {
    x[i] = static_cast<float>(logits[ids[i]]);
    g[i] = static_cast<Real>(grad_probs[ids[i]]);
  });
  if (config.score_function == ScoreFunction::kSoftmax) {
    PostSoftmaxBackward<Math>(lanes, x, g, config.top_k, scale, dx);
  } else {
    ScoreBackward<Math>(lanes, config.score_function, x, g, config.top_k, scale, dx);
  }
  lanes.ForEachSlot(config.top_k, [&](int32_t i, int32_t) { rounded[i] = static_cast<T>(dx[i]); });
  lanes.WriteRow(tensors.grad_logits + first, config.num_experts, ZeroFill(), ids, rounded, config.top_k);
  return clamped;
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_ROUTER_ROW_H_
