// One router row from ids to probabilities and back, shared by the CPU code and the CUDA kernels.
//
// T is the dtype of logits: anything that converts to float and back. Math is of arithmetic.h. Configurations are
// checked ones, ids are below E.
#ifndef TRAINER_PLUGIN_REPLAY_ROUTER_ROW_H_
#define TRAINER_PLUGIN_REPLAY_ROUTER_ROW_H_

#include <cstdint>

#include "routing_replay/trainer/router_config.h"
#include "trainer_plugin/replay/arithmetic.h"
#include "trainer_plugin/replay/compact_id.h"
#include "trainer_plugin/replay/host_device.h"
#include "trainer_plugin/replay/live_choice.h"
#include "trainer_plugin/replay/row_math.h"

namespace routing_replay::trainer {

// Reads the K ids of row `row`, ids >= E clamped to E - 1, and gives the number of those.
RR_HOST_DEVICE inline int32_t LoadRowIds(const RouterConfig& config, const uint8_t* ids, int32_t id_bytes, int64_t row,
                                         uint16_t* out) {
  int32_t clamped = 0;
  for (int32_t k = 0; k < config.top_k; ++k) {
    uint32_t id = LoadId(ids, id_bytes, row * config.top_k + k);
    if (id >= static_cast<uint32_t>(config.num_experts)) {
      id = static_cast<uint32_t>(config.num_experts) - 1;
      ++clamped;
    }
    out[k] = static_cast<uint16_t>(id);
  }
  return clamped;
}

// The K probabilities p of a row, scaled.
template <typename Math, typename T, typename Real = typename Math::Real>
RR_HOST_DEVICE inline void ForwardRow(const RouterConfig& config, const T* logits, const uint16_t* ids, Real* p) {
  const Real scale = static_cast<Real>(EffectiveScale(config));
  if (config.pre_softmax) {
    const SoftmaxNormalizer normalizer = NormalizerOf(logits, config.num_experts);
    for (int32_t k = 0; k < config.top_k; ++k) {
      p[k] = Math::Round(Math::Round(SoftmaxAt(normalizer, static_cast<float>(logits[ids[k]]))) * scale);
    }
    return;
  }
  float x[kMaxSlots];
  for (int32_t k = 0; k < config.top_k; ++k) x[k] = static_cast<float>(logits[ids[k]]);
  if (config.score_function == ScoreFunction::kSoftmax) {
    PostSoftmaxForward<Math>(x, config.top_k, scale, p);
  } else {
    ScoreForward<Math>(config.score_function, x, config.top_k, scale, p);
  }
}

// Softmax before the choice reaches all E logits: ∂x_e = s_e (g_e [e chosen] − Σ_k g_k s_jk).
template <typename Math, typename T>
RR_HOST_DEVICE inline void PreSoftmaxBackwardRow(const RouterConfig& config, const T* logits, const uint16_t* ids,
                                                 const T* grad_probs, T* grad_logits) {
  using Real = typename Math::Real;
  const Real scale = static_cast<Real>(EffectiveScale(config));
  const SoftmaxNormalizer normalizer = NormalizerOf(logits, config.num_experts);
  const auto scaled = [&](int32_t e) {
    return static_cast<float>(Math::Round(static_cast<Real>(grad_probs[e]) * scale));
  };
  const auto score = [&](int32_t e) { return SoftmaxAt(normalizer, static_cast<float>(logits[e])); };
  float dot = 0.0f;
  for (int32_t k = 0; k < config.top_k; ++k) dot += scaled(ids[k]) * score(ids[k]);
  for (int32_t e = 0; e < config.num_experts; ++e) grad_logits[e] = static_cast<T>(-dot * score(e));
  for (int32_t k = 0; k < config.top_k; ++k) {
    const int32_t e = ids[k];
    grad_logits[e] = static_cast<T>((scaled(e) - dot) * score(e));
  }
}

// The gradient by the E logits of a row; grad_logits is fully overwritten.
template <typename Math, typename T>
RR_HOST_DEVICE inline void BackwardRow(const RouterConfig& config, const T* logits, const uint16_t* ids,
                                       const T* grad_probs, T* grad_logits) {
  using Real = typename Math::Real;
  if (config.pre_softmax) return PreSoftmaxBackwardRow<Math>(config, logits, ids, grad_probs, grad_logits);
  const Real scale = static_cast<Real>(EffectiveScale(config));
  float x[kMaxSlots], dx[kMaxSlots];
  Real g[kMaxSlots], scratch[kMaxSlots];
  for (int32_t k = 0; k < config.top_k; ++k) {
    x[k] = static_cast<float>(logits[ids[k]]);
    g[k] = static_cast<Real>(grad_probs[ids[k]]);
  }
  if (config.score_function == ScoreFunction::kSoftmax) {
    PostSoftmaxBackward<Math>(x, g, config.top_k, scale, dx);
  } else {
    ScoreBackward<Math>(config.score_function, x, g, config.top_k, scale, scratch, dx);
  }
  for (int32_t e = 0; e < config.num_experts; ++e) grad_logits[e] = static_cast<T>(0.0f);
  for (int32_t k = 0; k < config.top_k; ++k) grad_logits[ids[k]] = static_cast<T>(dx[k]);
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_ROUTER_ROW_H_
