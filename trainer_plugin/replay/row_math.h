// The arithmetic of one router row over its K gathered logits, shared by the CPU code and the CUDA kernels.
//
// Sums in slot order, so that two runs of the same code give the same bits. Formulas: router.h.
// Where a quotient is differentiated the order of operations is autograd's, (a / A) / A and not a / A²: A² underflows
// where A does not.
#ifndef TRAINER_PLUGIN_REPLAY_ROW_MATH_H_
#define TRAINER_PLUGIN_REPLAY_ROW_MATH_H_

#include <cmath>
#include <cstdint>

#include "routing_replay/trainer/router_config.h"
#include "trainer_plugin/replay/host_device.h"

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

// Sums runs of 32 terms first, then the runs: exact slot order for K <= 32, and no drift over hundreds of experts.
template <typename T>
RR_HOST_DEVICE inline SoftmaxNormalizer NormalizerOf(const T* x, int32_t n) {
  constexpr int32_t kRun = 32;
  SoftmaxNormalizer result{static_cast<float>(x[0]), 0.0f};
  for (int32_t i = 1; i < n; ++i) result.max = fmaxf(result.max, static_cast<float>(x[i]));
  for (int32_t begin = 0; begin < n; begin += kRun) {
    const int32_t end = n - begin < kRun ? n : begin + kRun;
    float run = 0.0f;
    for (int32_t i = begin; i < end; ++i) run += expf(static_cast<float>(x[i]) - result.max);
    result.sum += run;
  }
  return result;
}

RR_HOST_DEVICE inline float SoftmaxAt(const SoftmaxNormalizer& normalizer, float x) {
  return expf(x - normalizer.max) / normalizer.sum;
}

// Softmax after the choice: p and dx from the K gathered logits x and upstream gradients g. `Math` is of arithmetic.h.
template <typename Math, typename Real = typename Math::Real>
RR_HOST_DEVICE inline void PostSoftmaxForward(const float* x, int32_t k, Real scale, Real* p) {
  const SoftmaxNormalizer normalizer = NormalizerOf(x, k);
  for (int32_t i = 0; i < k; ++i) p[i] = Math::Round(Math::Round(SoftmaxAt(normalizer, x[i])) * scale);
}

template <typename Math, typename Real = typename Math::Real>
RR_HOST_DEVICE inline void PostSoftmaxBackward(const float* x, const Real* g, int32_t k, Real scale, float* dx) {
  const SoftmaxNormalizer normalizer = NormalizerOf(x, k);
  float dot = 0.0f;
  for (int32_t i = 0; i < k; ++i) {
    dx[i] = SoftmaxAt(normalizer, x[i]);
    dot += static_cast<float>(Math::Round(g[i] * scale)) * dx[i];
  }
  for (int32_t i = 0; i < k; ++i) dx[i] *= static_cast<float>(Math::Round(g[i] * scale)) - dot;
}

// Sigmoid and sqrtsoftplus, renormalised over the row where K > 1. The scores a of x, and what divides them.
template <typename Math, typename Real = typename Math::Real>
RR_HOST_DEVICE inline Real ScoresAndDivisor(ScoreFunction function, const float* x, int32_t k, Real* a) {
  Real sum = 0;
  for (int32_t i = 0; i < k; ++i) sum += a[i] = Math::Round(Score(function, x[i]));
  return k > 1 ? Math::Round(Math::Round(sum) + static_cast<Real>(kSumEpsilon)) : 1;
}

template <typename Math, typename Real = typename Math::Real>
RR_HOST_DEVICE inline void ScoreForward(ScoreFunction function, const float* x, int32_t k, Real scale, Real* p) {
  const Real divisor = ScoresAndDivisor<Math>(function, x, k, p);
  for (int32_t i = 0; i < k; ++i) p[i] = Math::Round(Math::Round(p[i] / divisor) * scale);
}

// `a` is scratch of K. dx must not overlap x.
template <typename Math, typename Real = typename Math::Real>
RR_HOST_DEVICE inline void ScoreBackward(ScoreFunction function, const float* x, const Real* g, int32_t k, Real scale,
                                         Real* a, float* dx) {
  const Real divisor = ScoresAndDivisor<Math>(function, x, k, a);
  Real through_sum = 0;
  for (int32_t i = 0; i < k && k > 1; ++i) {
    const Real quotient = Math::Round(Math::Round(a[i] / divisor) / divisor);
    through_sum += Math::Round(Math::Round(g[i] * scale) * quotient);
  }
  through_sum = Math::Round(through_sum);
  for (int32_t i = 0; i < k; ++i) {
    const Real da = Math::Round(Math::Round(Math::Round(g[i] * scale) / divisor) - through_sum);
    dx[i] = static_cast<float>(da) * ScoreDerivative(function, x[i], Score(function, x[i]));
  }
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_ROW_MATH_H_
