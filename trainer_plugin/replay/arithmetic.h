// In what precision a router row is computed, shared by the CPU code and the CUDA kernels.
#ifndef TRAINER_PLUGIN_REPLAY_ARITHMETIC_H_
#define TRAINER_PLUGIN_REPLAY_ARITHMETIC_H_

#include <type_traits>
#include <utility>

#include "routing_replay/trainer/router_config.h"
#include "trainer_plugin/replay/host_device.h"

namespace routing_replay::trainer {

// Each rounds what comes after the scores with Round, and a score of `logits` with RoundScore.

// Rounding::kOnce for logits of dtype D: fp32 throughout.
template <typename D>
struct FloatArithmetic {
  using Real = float;
  RR_HOST_DEVICE static float Round(float x) { return x; }
  template <typename Logits>
  RR_HOST_DEVICE static float RoundScore(const Logits& logits, float x) {
    return x;
  }
};

// Rounding::kEachStep: scores and softmax in fp32, everything after them rounded to D as torch's operators on D do,
// which compute in fp32 (in fp64 where D is that).
template <typename D>
struct SteppedArithmetic {
  using Real = std::conditional_t<std::is_same_v<D, double>, double, float>;
  RR_HOST_DEVICE static Real Round(Real x) { return static_cast<Real>(static_cast<D>(x)); }
  template <typename Logits>
  RR_HOST_DEVICE static float RoundScore(const Logits& logits, float x) {
    return static_cast<float>(static_cast<D>(x));
  }
};

// Calls `body` with the arithmetic that the rounding asks for.
template <typename D, typename Body>
void WithArithmetic(Rounding rounding, Body&& body) {
  if (rounding == Rounding::kOnce) {
    std::forward<Body>(body)(FloatArithmetic<D>());
  } else {
    std::forward<Body>(body)(SteppedArithmetic<D>());
  }
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_ARITHMETIC_H_
