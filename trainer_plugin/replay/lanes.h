// Who computes a router row: one lane that holds all K slots (the CPU), or the 32 lanes of a warp that share them
// (warp_lanes.h). The row's arithmetic is written once, for any such `Lanes`:
//
//   kSlotsPerLane          most slots that a lane holds: the size of its arrays of slots
//   ForEachSlot(k, body)   body(i, slot) for each of the lane's slots below k; i is the place in the lane's arrays
//   VisitSlots(v, begin, end, body)  body(v of the slot, slot) for slots [begin, end) in order, each on every lane
//   SumSlots(v, begin, end)  Σ v over slots [begin, end), one after the other in slot order
//   SumLanes(n)            Σ of what each lane gives
//   MaxSlots(v, k)         NaN is passed over
//   MaxExperts(n, term), SumExperts(n, term)   over term(e) of all experts e < n
//   WriteRow(...)          a row over the experts, all zero or what `fill` says, but for the chosen ones
//
// Every lane calls all of them, and all lanes get the same result. Sums have one order whatever the lanes, so that both
// give the same bits: slots in slot order; experts in 32 strided sums, which a tree then joins.
#ifndef TRAINER_PLUGIN_REPLAY_LANES_H_
#define TRAINER_PLUGIN_REPLAY_LANES_H_

#include <cmath>
#include <cstdint>

#include "trainer_plugin/replay/host_device.h"

namespace routing_replay::trainer {

// Most ids of a row (the wire's kMaxTopK): the size of per-row scratch.
inline constexpr int32_t kMaxSlots = 64;
// Strided sums over experts.
inline constexpr int32_t kStrides = 32;

// Says that WriteRow leaves zeros where no expert is chosen.
struct ZeroFill {};

struct OneLane {
  static constexpr int32_t kSlotsPerLane = kMaxSlots;

  template <typename Body>
  void ForEachSlot(int32_t k, Body&& body) const {
    for (int32_t slot = 0; slot < k; ++slot) body(slot, slot);
  }

  template <typename T, typename Body>
  void VisitSlots(const T* v, int32_t begin, int32_t end, Body&& body) const {
    for (int32_t slot = begin; slot < end; ++slot) body(v[slot], slot);
  }

  template <typename T>
  T SumSlots(const T* v, int32_t begin, int32_t end) const {
    T sum = 0;
    VisitSlots(v, begin, end, [&](T value, int32_t) { sum += value; });
    return sum;
  }

  int32_t SumLanes(int32_t n) const { return n; }

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

  // out[n]: out[ids[slot]] = values[slot] for slots below k, zero elsewhere.
  template <typename T>
  void WriteRow(T* out, int32_t n, ZeroFill, const uint16_t* ids, const T* values, int32_t k) const {
    for (int32_t e = 0; e < n; ++e) out[e] = T();
    for (int32_t slot = 0; slot < k; ++slot) out[ids[slot]] = values[slot];
  }

  // The same with fill(e) elsewhere.
  template <typename T, typename Fill>
  void WriteRow(T* out, int32_t n, Fill&& fill, const uint16_t* ids, const T* values, int32_t k) const {
    for (int32_t e = 0; e < n; ++e) out[e] = fill(e);
    for (int32_t slot = 0; slot < k; ++slot) out[ids[slot]] = values[slot];
  }
};

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_LANES_H_
