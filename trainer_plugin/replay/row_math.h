// The arithmetic of one router row, shared by the CPU code and the CUDA kernels: precision, how lanes share the work,
// scores and their gradients, and the live choice.
#ifndef TRAINER_PLUGIN_REPLAY_ROW_MATH_H_
#define TRAINER_PLUGIN_REPLAY_ROW_MATH_H_

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "routing_replay/trainer/router_config.h"
#include "trainer_plugin/replay/compact_id.h"

namespace routing_replay::trainer {

// Rounding::kEachStep: scores and softmax are computed in fp32 and then rounded to D. So is each later step, as by
// torch's operators on D, which compute in fp32 (in fp64 if D is fp64).
template <typename D>
struct SteppedArithmetic {
  using Real = std::conditional_t<std::is_same_v<D, double>, double, float>;
  RR_HOST_DEVICE static Real Round(Real x) { return static_cast<Real>(static_cast<D>(x)); }
};

// Rounding::kOnce: fp32 throughout.
using FloatArithmetic = SteppedArithmetic<float>;

// Calls `body` with the arithmetic for this rounding.
template <typename D, typename Body>
void WithArithmetic(Rounding rounding, Body&& body) {
  if (rounding == Rounding::kOnce) {
    std::forward<Body>(body)(FloatArithmetic());
  } else {
    std::forward<Body>(body)(SteppedArithmetic<D>());
  }
}

// The lanes that compute a router row: one lane with all K slots (the CPU), or the 32 lanes of a warp that share them
// (warp_rows.h). The row's arithmetic is written once, for any such `Lanes`:
//
//   kSlotsPerLane          most slots that a lane holds: the size of its arrays of slots
//   ForEachSlot(k, body)   body(i, slot) for each of the lane's slots below k; i is its index in the lane's arrays
//   SumSlots(v, begin, end)  Σ v over slots [begin, end), one after the other in slot order
//   MaxSlots(v, k)         the largest v of the slots below k, ignoring NaN
//   MaxExperts(n, term), SumExperts(n, term)   the largest term(e), or Σ term(e), of all experts e < n
//   WriteRow(...)          writes a row over all experts: the values of the chosen ones, and zero or fill(e) elsewhere
//
// Every lane must call these functions, and all lanes get the same result. Sums have the same order for one lane and
// for a warp, so that both give the same bits: slots in slot order; experts in 32 strided sums, which a tree then adds
// up.

// The largest number of ids in a row (the wire's kMaxTopK): the size of per-row scratch memory.
inline constexpr int32_t kMaxSlots = 64;
// Number of strided sums over experts.
inline constexpr int32_t kStrides = 32;

// Argument of WriteRow: write zeros for experts that are not chosen.
struct ZeroFill {};

struct OneLane {
  static constexpr int32_t kSlotsPerLane = kMaxSlots;

  template <typename Body>
  void ForEachSlot(int32_t k, Body&& body) const {
    for (int32_t slot = 0; slot < k; ++slot) body(slot, slot);
  }

  template <typename T>
  T SumSlots(const T* v, int32_t begin, int32_t end) const {
    T sum = 0;
    for (int32_t slot = begin; slot < end; ++slot) sum += v[slot];
    return sum;
  }

  float MaxSlots(const float* v, int32_t k) const {
    float max = -INFINITY;
    for (int32_t slot = 0; slot < k; ++slot) max = fmaxf(max, v[slot]);
    return max;
  }

  template <typename Term>
  float MaxExperts(int32_t n, Term&& term) const {
    float max = -INFINITY;
    for (int32_t e = 0; e < n; ++e) max = fmaxf(max, term(e));
    return max;
  }

  template <typename Term>
  float SumExperts(int32_t n, Term&& term) const {
    float sums[kStrides] = {};
    for (int32_t e = 0; e < n; ++e) sums[e % kStrides] += term(e);
    for (int32_t half = kStrides / 2; half > 0; half /= 2) {
      for (int32_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    return sums[0];
  }

  // Writes all n elements of `out`: out[ids[slot]] = values[slot] for each slot below k, and zero elsewhere.
  template <typename T>
  void WriteRow(T* out, int32_t n, ZeroFill, const uint16_t* ids, const T* values, int32_t k) const {
    for (int32_t e = 0; e < n; ++e) out[e] = T();
    for (int32_t slot = 0; slot < k; ++slot) out[ids[slot]] = values[slot];
  }

  // The same, with out[e] = fill(e) elsewhere.
  template <typename T, typename Fill>
  void WriteRow(T* out, int32_t n, Fill&& fill, const uint16_t* ids, const T* values, int32_t k) const {
    for (int32_t e = 0; e < n; ++e) out[e] = fill(e);
    for (int32_t slot = 0; slot < k; ++slot) out[ids[slot]] = values[slot];
  }
};

// The arithmetic of one router row over its K gathered logits. router.h has the formulas. Where a quotient is
// differentiated, the order of operations is autograd's: (a / A) / A and not a / A², because A² may underflow where A
// does not.

// Megatron adds this to avoid division by zero.
inline constexpr double kSumEpsilon = 1e-20;
// Above this threshold softplus(x) is x, as in torch.
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

// The derivative of the score, given the score a. 0 if sqrtsoftplus underflows to 0, where torch gives NaN.
RR_HOST_DEVICE inline float ScoreDerivative(ScoreFunction function, float x, float a) {
  if (function == ScoreFunction::kSigmoid) return a * (1.0f - a);
  if (a == 0.0f) return 0.0f;
  const float z = expf(x);  // z / (1 + z) stays exact for large negative x, where 1 / (1 + e^-x) is already 0.
  return (x > kSoftplusThreshold ? 1.0f : z / (1.0f + z)) / (2.0f * a);
}

// softmax(x)_e = e^(x_e - max) / sum.
struct SoftmaxNormalizer {
  float max = 0.0f;
  float sum = 0.0f;
};

// Softmax over the K gathered logits: runs of 32 slots are summed first, then the runs.
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

// Softmax over all E logits, summed in the order of SumExperts, so that errors do not add up over hundreds of experts.
template <typename Lanes, typename T>
RR_HOST_DEVICE inline SoftmaxNormalizer ExpertNormalizer(const Lanes& lanes, const T* logits, int32_t experts) {
  const float max = lanes.MaxExperts(experts, [&](int32_t e) { return static_cast<float>(logits[e]); });
  return {max, lanes.SumExperts(experts, [&](int32_t e) { return expf(static_cast<float>(logits[e]) - max); })};
}

RR_HOST_DEVICE inline float SoftmaxAt(const SoftmaxNormalizer& normalizer, float x) {
  return expf(x - normalizer.max) / normalizer.sum;
}

// Softmax over the K chosen experts: probabilities p of logits x. Backward: dx from x and dp. Arrays of a lane's slots.
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

// Sigmoid and sqrtsoftplus, renormalised over the row if K > 1. Computes the scores `a` of x, and returns what divides
// them: their sum, or 1 if K is 1.
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

// The choice of a row without a route: top-k of the live scores. The CPU code and the CUDA kernels share the scores and
// their order; this search is the CPU's.

// Limit for the groups of a live choice, because they are stored as a bit mask.
inline constexpr int32_t kMaxGroups = 64;

// A strict total order of (score, id): NaN first, then higher scores first; equal scores by lower id.
RR_HOST_DEVICE inline bool RanksBefore(float a, int32_t id_a, float b, int32_t id_b) {
  const bool a_nan = a != a, b_nan = b != b;
  if (a_nan || b_nan) return a_nan && b_nan ? id_a < id_b : a_nan;
  return a == b ? id_a < id_b : a > b;
}

// Keeps the best of the offered candidates, best first.
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

// The scores by which Megatron ranks: the logits (softmax after the choice), their softmax (softmax before the choice),
// or sigmoid or sqrtsoftplus plus expert bias.
template <typename Math, typename T>
struct SelectionScores {
  const RouterConfig& config;
  const T* logits;    // [E]
  const float* bias;  // [E] or null.
  SoftmaxNormalizer normalizer;

  template <typename Lanes>
  RR_HOST_DEVICE SelectionScores(const Lanes& lanes, const RouterConfig& config, const T* logits, const float* bias)
      : config(config), logits(logits), bias(bias) {
    if (config.pre_softmax) normalizer = ExpertNormalizer(lanes, logits, config.num_experts);
  }
  RR_HOST_DEVICE float operator()(int32_t expert) const {
    const float x = static_cast<float>(logits[expert]);
    if (config.score_function == ScoreFunction::kSoftmax) {
      return config.pre_softmax ? static_cast<float>(Math::Round(SoftmaxAt(normalizer, x))) : x;
    }
    const float a = static_cast<float>(Math::Round(Score(config.score_function, x)));
    return bias == nullptr ? a : a + bias[expert];
  }
};

// Returns the groups from which experts may be chosen, as a bit mask: the group_topk groups with the highest sum of
// their K / group_topk best scores.
template <typename Math, typename T>
uint64_t ChooseGroups(const RouterConfig& config, const SelectionScores<Math, T>& scores) {
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

// Makes the live choice: writes the K ids, best first. `config` must have been checked. warp_rows.h has the version for
// a warp.
template <typename Math, typename T>
void ChooseLive(const OneLane& lane, const RouterConfig& config, const T* logits, const float* bias, uint16_t* ids) {
  const SelectionScores<Math, T> scores(lane, config, logits, bias);
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

#endif  // TRAINER_PLUGIN_REPLAY_ROW_MATH_H_
