// The arithmetic of one router row over its K gathered logits, shared by the CPU code and the CUDA kernels.
//
// Written for any `Lanes` of lanes.h, whose orders of summation make two runs of the same code give the same bits.
// Formulas: router.h.
// Where a quotient is differentiated the order of operations is autograd's, (a / A) / A and not a / A²: A² underflows
// where A does not.
#ifndef TRAINER_PLUGIN_REPLAY_ROW_MATH_H_
#define TRAINER_PLUGIN_REPLAY_ROW_MATH_H_

#include <cmath>
#include <cstdint>

#include "routing_replay/trainer/router_config.h"
#include "trainer_plugin/replay/host_device.h"
#include "trainer_plugin/replay/lanes.h"

namespace routing_replay::trainer {

// Megatron's guard against a zero sum.
inline constexpr double kSumEpsilon = 1e-20;
// Above it softplus(x) is x, as in torch.
inline constexpr float kSoftplusThreshold = 20.0f;

RR_HOST_DEVICE inline double EffectiveScale(const RouterConfig& config) {
  return config.scaling_factor == 0.0 ? 1.0 : config.scaling_factor;
}

RR_HOST_DEVICE inline float Logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

// The score of one expert: sigmoid or sqrtsoftplus.
RR_HOST_DEVICE inline float Score(ScoreFunction function, float x) {
  if (function == ScoreFunction::kSigmoid) return Logistic(x);
  return sqrtf(x > kSoftplusThreshold ? x : log1pf(expf(x)));
}

// Its derivative, given the score a. 0 where sqrtsoftplus underflows to 0; torch gives NaN there.
RR_HOST_DEVICE inline float ScoreDerivative(ScoreFunction function, float x, float a) {
  if (function == ScoreFunction::kSigmoid) return a * (1.0f - a);
  if (a == 0.0f) return 0.0f;
  const float z = expf(x);  // z / (1 + z) keeps digits for large negative x, where 1 / (1 + e^-x) is 0 already.
  return (x > kSoftplusThreshold ? 1.0f : z / (1.0f + z)) / (2.0f * a);
}

// softmax(x)_e = e^(x_e - max) / sum.
struct SoftmaxNormalizer {
  float max = 0.0f;
  float sum = 0.0f;
};

// Over the K gathered logits: runs of 32 slots are summed first, then the runs.
template <typename Lanes>
RR_HOST_DEVICE inline SoftmaxNormalizer SlotNormalizer(const Lanes& lanes, const float* x, int32_t k) {
  constexpr int32_t kRun = 32;
  SoftmaxNormalizer result{lanes.MaxSlots(x, k), 0.0f};
  float terms[Lanes::kSlotsPerLane];
  lanes.ForEachSlot(k, [&](int32_t i, int32_t) { terms[i] = expf(x[i] - result.max); });
  for (int32_t begin = 0; begin < k; begin += kRun) {
    result.sum += lanes.SumSlots(terms, begin, k - begin < kRun ? k : begin + kRun);
  }
  return result;
}

// Over all E logits, in the order of SumExperts: no drift over hundreds of experts.
template <typename Lanes, typename Logits>
RR_HOST_DEVICE inline SoftmaxNormalizer ExpertNormalizer(const Lanes& lanes, Logits logits, int32_t experts) {
  const float max = lanes.MaxExperts(experts, [&](int32_t e) { return static_cast<float>(logits[e]); });
  return {max, lanes.SumExperts(experts, [&](int32_t e) { return expf(static_cast<float>(logits[e]) - max); })};
}

RR_HOST_DEVICE inline float SoftmaxAt(const SoftmaxNormalizer& normalizer, float x) {
  return expf(x - normalizer.max) / normalizer.sum;
}

// Softmax after the choice: p and dx from the K gathered logits x and upstream gradients g, arrays of the lane's slots.
// `Math` is of arithmetic.h.
template <typename Math, typename Lanes, typename Real = typename Math::Real>
RR_HOST_DEVICE inline void PostSoftmaxForward(const Lanes& lanes, const float* x, int32_t k, Real scale, Real* p) {
  const SoftmaxNormalizer normalizer = SlotNormalizer(lanes, x, k);
  lanes.ForEachSlot(k,
                    [&](int32_t i, int32_t) { p[i] = Math::Round(Math::Round(SoftmaxAt(normalizer, x[i])) * scale); });
}

template <typename Math, typename Lanes, typename Real = typename Math::Real>
RR_HOST_DEVICE inline void PostSoftmaxBackward(const Lanes& lanes, const float* x, const Real* g, int32_t k, Real scale,
                                               float* dx) {
  const SoftmaxNormalizer normalizer = SlotNormalizer(lanes, x, k);
  float terms[Lanes::kSlotsPerLane];
  lanes.ForEachSlot(k, [&](int32_t i, int32_t) {
    dx[i] = SoftmaxAt(normalizer, x[i]);
    terms[i] = static_cast<float>(Math::Round(g[i] * scale)) * dx[i];
  });
  const float dot = lanes.SumSlots(terms, 0, k);
  lanes.ForEachSlot(k, [&](int32_t i, int32_t) { dx[i] *= static_cast<float>(Math::Round(g[i] * scale)) - dot; });
}

// Sigmoid and sqrtsoftplus, renormalised over the row where K > 1. The scores a of x, and what divides them.
template <typename Math, typename Lanes, typename Real = typename Math::Real>
RR_HOST_DEVICE inline Real ScoresAndDivisor(const Lanes& lanes, ScoreFunction function, const float* x, int32_t k,
                                            Real* a) {
  lanes.ForEachSlot(k, [&](int32_t i, int32_t) { a[i] = Math::Round(Score(function, x[i])); });
  if (k == 1) return 1;
  return Math::Round(Math::Round(lanes.SumSlots(a, 0, k)) + static_cast<Real>(kSumEpsilon));
}

template <typename Math, typename Lanes, typename Real = typename Math::Real>
RR_HOST_DEVICE inline void ScoreForward(const Lanes& lanes, ScoreFunction function, const float* x, int32_t k,
                                        Real scale, Real* p) {
  const Real divisor = ScoresAndDivisor<Math>(lanes, function, x, k, p);
  lanes.ForEachSlot(k, [&](int32_t i, int32_t) { p[i] = Math::Round(Math::Round(p[i] / divisor) * scale); });
}

// dx must not overlap x.
template <typename Math, typename Lanes, typename Real = typename Math::Real>
RR_HOST_DEVICE inline void ScoreBackward(const Lanes& lanes, ScoreFunction function, const float* x, const Real* g,
                                         int32_t k, Real scale, float* dx) {
  Real a[Lanes::kSlotsPerLane], terms[Lanes::kSlotsPerLane];
  const Real divisor = ScoresAndDivisor<Math>(lanes, function, x, k, a);
  Real through_sum = 0;
  if (k > 1) {
    lanes.ForEachSlot(k, [&](int32_t i, int32_t) {
      const Real quotient = Math::Round(Math::Round(a[i] / divisor) / divisor);
      terms[i] = Math::Round(Math::Round(g[i] * scale) * quotient);
    });
    through_sum = Math::Round(lanes.SumSlots(terms, 0, k));
  }
  lanes.ForEachSlot(k, [&](int32_t i, int32_t) {
    const Real da = Math::Round(Math::Round(Math::Round(g[i] * scale) / divisor) - through_sum);
    dx[i] = static_cast<float>(da) * ScoreDerivative(function, x[i], Score(function, x[i]));
  });
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_ROW_MATH_H_
