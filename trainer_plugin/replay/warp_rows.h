// The Lanes of row_math.h for a warp, and a warp's live choice. `Warp` is a warp of a GPU, or in tests one that fibers
// simulate on the CPU.
#ifndef TRAINER_PLUGIN_REPLAY_WARP_ROWS_H_
#define TRAINER_PLUGIN_REPLAY_WARP_ROWS_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "routing_replay/trainer/router_config.h"
#include "trainer_plugin/replay/compact_id.h"
#include "trainer_plugin/replay/row_math.h"

namespace routing_replay::trainer {

// A router row on the 32 lanes of a warp: slot s belongs to lane s % 32, at index s / 32 of its arrays (row_math.h).
//
// Warp provides what the lanes do together: lane(), Sync() (a barrier that orders the tile's memory), Shuffle(value,
// lane) and ShuffleXor(value, mask). kernels.cu has the GPU's; the tests have one that runs on the CPU.

inline constexpr int32_t kWarpSize = 32;
// Size of the tile in which a warp assembles a row before it is written in wide stores: 512 floats.
inline constexpr int32_t kTileBytes = 2048;
inline constexpr int32_t kTileAlignment = 16;

template <typename Warp>
class WarpLanes {
 public:
  static constexpr int32_t kSlotsPerLane = kMaxSlots / kWarpSize;

  // `tile`: kTileBytes bytes, used only by this warp, aligned to kTileAlignment.
  RR_HOST_DEVICE WarpLanes(const Warp& warp, uint8_t* tile) : warp_(warp), tile_(tile) {}

  RR_HOST_DEVICE const Warp& warp() const { return warp_; }
  RR_HOST_DEVICE uint8_t* tile() const { return tile_; }

  template <typename Body>
  RR_HOST_DEVICE void ForEachSlot(int32_t k, Body&& body) const {
    RR_UNROLL
    for (int32_t i = 0; i < kSlotsPerLane; ++i) {
      const int32_t slot = i * kWarpSize + warp_.lane();
      if (slot < k) body(i, slot);
    }
  }

  template <typename T>
  RR_HOST_DEVICE T SumSlots(const T* v, int32_t begin, int32_t end) const {
    T sum = 0;
    RR_UNROLL
    for (int32_t i = 0; i < kSlotsPerLane; ++i) {
      const int32_t first = i * kWarpSize;
      const int32_t from = begin > first ? begin : first;
      const int32_t to = end < first + kWarpSize ? end : first + kWarpSize;
      for (int32_t slot = from; slot < to; ++slot) sum += warp_.Shuffle(v[i], slot - first);
    }
    return sum;
  }

  RR_HOST_DEVICE float MaxSlots(const float* v, int32_t k) const {
    float max = -INFINITY;
    ForEachSlot(k, [&](int32_t i, int32_t) { max = fmaxf(max, v[i]); });
    return MaxOfLanes(max);
  }

  // Calls body(e) for each of the lane's experts. At each step, neighbouring lanes have adjacent experts.
  template <typename Body>
  RR_HOST_DEVICE void ForEachExpert(int32_t begin, int32_t end, Body&& body) const {
    for (int32_t e = begin + warp_.lane(); e < end; e += kWarpSize) body(e);
  }

  // The same in less code, for rare rows. The compiler unrolls ForEachExpert, so that its loads overlap.
  template <typename Body>
  RR_HOST_DEVICE void VisitExperts(int32_t begin, int32_t end, Body&& body) const {
    RR_NO_UNROLL
    for (int32_t e = begin + warp_.lane(); e < end; e += kWarpSize) body(e);
  }

  template <typename Term>
  RR_HOST_DEVICE float MaxExperts(int32_t n, Term&& term) const {
    float max = -INFINITY;
    ForEachExpert(0, n, [&](int32_t e) { max = fmaxf(max, term(e)); });
    return MaxOfLanes(max);
  }

  template <typename Term>
  RR_HOST_DEVICE float SumExperts(int32_t n, Term&& term) const {
    static_assert(kStrides == kWarpSize, "each lane sums one stride");
    float sum = 0.0f;
    ForEachExpert(0, n, [&](int32_t e) { sum += term(e); });
    RR_UNROLL
    for (int32_t mask = kWarpSize / 2; mask > 0; mask /= 2) sum += warp_.ShuffleXor(sum, mask);
    return sum;
  }

  // See OneLane. For each tile of the row: fills the tile, overwrites the chosen values, and copies the tile out.
  template <typename T, typename Fill>
  RR_HOST_DEVICE void WriteRow(T* out, int32_t n, Fill&& fill, const uint16_t* ids, const T* values, int32_t k) const {
    constexpr int32_t kTile = kTileBytes / static_cast<int32_t>(sizeof(T));
    T* tile = reinterpret_cast<T*>(tile_);
    for (int32_t begin = 0; begin < n; begin += kTile) {
      const int32_t count = n - begin < kTile ? n - begin : kTile;
      const int32_t bytes = count * static_cast<int32_t>(sizeof(T));
      if constexpr (std::is_same_v<std::decay_t<Fill>, ZeroFill>) {
        ClearTile(bytes);
      } else {
        ForEachExpert(0, count, [&](int32_t e) { tile[e] = fill(begin + e); });
      }
      warp_.Sync();
      ForEachSlot(k, [&](int32_t i, int32_t) {
        const int32_t at = ids[i] - begin;
        if (at >= 0 && at < count) tile[at] = values[i];
      });
      warp_.Sync();
      CopyBytes(warp_.lane(), kWarpSize, reinterpret_cast<uint8_t*>(out + begin), tile_, bytes);
      warp_.Sync();
    }
  }

 private:
  RR_HOST_DEVICE float MaxOfLanes(float max) const {
    RR_UNROLL
    for (int32_t mask = kWarpSize / 2; mask > 0; mask /= 2) max = fmaxf(max, warp_.ShuffleXor(max, mask));
    return max;
  }

  // Clears the first `bytes` bytes of the tile, rounded up to a multiple of kTileAlignment. The tile is large enough.
  RR_HOST_DEVICE void ClearTile(int32_t bytes) const {
    RR_NO_UNROLL
    for (int32_t at = warp_.lane() * kTileAlignment; at < bytes; at += kWarpSize * kTileAlignment) {
      ClearUnit(tile_ + at);
    }
  }

  const Warp& warp_;
  uint8_t* tile_;
};

// The live choice of a row on the lanes of a warp. row_math.h defines the result; here it is found in rounds.
//
// Each round finds the best expert among those that rank after the expert of the previous round. Between rounds only
// that expert is stored, whatever E is. Scores are computed once if they fit into the tile, otherwise again in each
// round.

// An expert or a group that may be chosen.
struct Candidate {
  float score = 0.0f;
  int32_t id = -1;  // -1: none.
};

RR_HOST_DEVICE inline bool RanksBefore(const Candidate& a, const Candidate& b) {
  return a.id >= 0 && (b.id < 0 || RanksBefore(a.score, a.id, b.score, b.id));
}

// Replaces `best` by `offered` if `offered` ranks before it and was not found in an earlier round. `last` is the result
// of the previous round, if there was one.
RR_HOST_DEVICE inline void Offer(const Candidate& offered, const Candidate& last, Candidate& best) {
  if (last.id >= 0 && !RanksBefore(last, offered)) return;
  if (RanksBefore(offered, best)) best = offered;
}

// Returns the best of the lanes' candidates, on all lanes.
template <typename Warp>
RR_HOST_DEVICE inline Candidate BestOfLanes(const Warp& warp, Candidate best) {
  RR_UNROLL
  for (int32_t mask = kWarpSize / 2; mask > 0; mask /= 2) {
    const Candidate other{warp.ShuffleXor(best.score, mask), warp.ShuffleXor(best.id, mask)};
    if (RanksBefore(other, best)) best = other;
  }
  return best;
}

// The SelectionScores, stored in the tile if they fit.
template <typename Math, typename T>
struct TiledScores {
  SelectionScores<Math, T> scores;
  const float* tile;  // Null if they do not fit.

  template <typename Warp>
  RR_HOST_DEVICE TiledScores(const WarpLanes<Warp>& lanes, const RouterConfig& config, const T* logits,
                             const float* bias)
      : scores(lanes, config, logits, bias), tile(nullptr) {
    if (config.num_experts > kTileBytes / static_cast<int32_t>(sizeof(float))) return;
    float* values = reinterpret_cast<float*>(lanes.tile());
    lanes.VisitExperts(0, config.num_experts, [&](int32_t e) { values[e] = scores(e); });
    lanes.warp().Sync();
    tile = values;
  }
  RR_HOST_DEVICE float operator()(int32_t expert) const { return tile != nullptr ? tile[expert] : scores(expert); }
};

// The sum of the K / group_topk best scores of a group, added up from the best one on.
template <typename Warp, typename Scores>
RR_HOST_DEVICE inline float GroupScore(const WarpLanes<Warp>& lanes, const RouterConfig& config, const Scores& scores,
                                       int32_t group) {
  const int32_t size = config.num_experts / config.num_groups;
  const int32_t wanted = config.top_k / config.group_topk;
  float sum = 0.0f;
  Candidate last;
  RR_NO_UNROLL
  for (int32_t i = 0; i < wanted && i < size; ++i) {
    Candidate best;
    lanes.VisitExperts(group * size, (group + 1) * size, [&](int32_t e) { Offer({scores(e), e}, last, best); });
    last = BestOfLanes(lanes.warp(), best);
    sum += last.score;
  }
  return sum;
}

// Returns the groups from which experts may be chosen, as a bit mask. Lane g % 32 keeps the score of group g.
template <typename Warp, typename Scores>
RR_HOST_DEVICE inline uint64_t ChooseGroups(const WarpLanes<Warp>& lanes, const RouterConfig& config,
                                            const Scores& scores) {
  static_assert(kMaxGroups <= kMaxSlots, "groups lie on the lanes as slots do");
  float sums[WarpLanes<Warp>::kSlotsPerLane] = {};
  RR_NO_UNROLL
  for (int32_t group = 0; group < config.num_groups; ++group) {
    const float sum = GroupScore(lanes, config, scores, group);
    lanes.ForEachSlot(config.num_groups, [&](int32_t i, int32_t slot) { sums[i] = slot == group ? sum : sums[i]; });
  }
  uint64_t mask = 0;
  Candidate last;
  RR_NO_UNROLL
  for (int32_t i = 0; i < config.group_topk; ++i) {
    Candidate best;
    lanes.ForEachSlot(config.num_groups, [&](int32_t j, int32_t slot) { Offer({sums[j], slot}, last, best); });
    last = BestOfLanes(lanes.warp(), best);
    mask |= uint64_t{1} << last.id;
  }
  return mask;
}

// Chooses the row's K experts, best first (slot 0 has the best), and writes the ids of this lane's slots to `ids`.
// `config` must have been checked.
template <typename Math, typename Warp, typename T>
RR_HOST_DEVICE inline void ChooseLive(const WarpLanes<Warp>& lanes, const RouterConfig& config, const T* logits,
                                      const float* bias, uint16_t* ids) {
  const TiledScores<Math, T> scores(lanes, config, logits, bias);
  const uint64_t groups = config.num_groups > 1 ? ChooseGroups(lanes, config, scores) : 1;
  const int32_t group_size = config.num_experts / config.num_groups;
  Candidate last;
  RR_NO_UNROLL
  for (int32_t found = 0; found < config.top_k; ++found) {
    Candidate best;
    lanes.VisitExperts(0, config.num_experts, [&](int32_t e) {
      if (config.num_groups > 1 && (groups >> (e / group_size) & 1) == 0) return;
      Offer({scores(e), e}, last, best);
    });
    last = BestOfLanes(lanes.warp(), best);
    lanes.ForEachSlot(config.top_k, [&](int32_t i, int32_t slot) {
      if (slot == found) ids[i] = static_cast<uint16_t>(last.id);
    });
  }
  lanes.warp().Sync();  // After this barrier the tile can be reused.
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_WARP_ROWS_H_
