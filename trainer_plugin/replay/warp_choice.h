// The live choice of a row on the lanes of a warp: what live_choice.h says, found in rounds.
//
// Each round gives the best expert of those that rank after the last one found. Nothing is stored between rounds but
// that one, whatever E is; scores are computed once where the tile holds them, and again in each round otherwise.
#ifndef TRAINER_PLUGIN_REPLAY_WARP_CHOICE_H_
#define TRAINER_PLUGIN_REPLAY_WARP_CHOICE_H_

#include <cstdint>

#include "routing_replay/trainer/router_config.h"
#include "trainer_plugin/replay/host_device.h"
#include "trainer_plugin/replay/live_choice.h"
#include "trainer_plugin/replay/warp_lanes.h"

namespace routing_replay::trainer {

// An expert or a group in the running.
struct Candidate {
  float score = 0.0f;
  int32_t id = -1;  // -1: none.
};

RR_HOST_DEVICE inline bool RanksBefore(const Candidate& a, const Candidate& b) {
  return a.id >= 0 && (b.id < 0 || RanksBefore(a.score, a.id, b.score, b.id));
}

// Takes `offered` if it beats `best` and was not found yet: `last` is what the round before found, if there was one.
RR_HOST_DEVICE inline void Offer(const Candidate& offered, const Candidate& last, Candidate& best) {
  if (last.id >= 0 && !RanksBefore(last, offered)) return;
  if (RanksBefore(offered, best)) best = offered;
}

// The best of what the lanes offer, on all of them.
template <typename Warp>
RR_HOST_DEVICE inline Candidate BestOfLanes(const Warp& warp, Candidate best) {
  RR_UNROLL
  for (int32_t mask = kWarpSize / 2; mask > 0; mask /= 2) {
    const Candidate other{warp.ShuffleXor(best.score, mask), warp.ShuffleXor(best.id, mask)};
    if (RanksBefore(other, best)) best = other;
  }
  return best;
}

// SelectionScores that lie in the tile where they fit in.
template <typename Math, typename Logits>
struct TiledScores {
  SelectionScores<Math, Logits> scores;
  const float* tile;  // Null where they do not fit.

  template <typename Warp>
  RR_HOST_DEVICE TiledScores(const WarpLanes<Warp>& lanes, const RouterConfig& config, Logits logits, const float* bias)
      : scores(lanes, config, logits, bias), tile(nullptr) {
    if (config.num_experts > kTileBytes / static_cast<int32_t>(sizeof(float))) return;
    float* values = reinterpret_cast<float*>(lanes.tile());
    lanes.VisitExperts(0, config.num_experts, [&](int32_t e) { values[e] = scores(e); });
    lanes.warp().Sync();
    tile = values;
  }
  RR_HOST_DEVICE float operator()(int32_t expert) const { return tile != nullptr ? tile[expert] : scores(expert); }
};

// The sum of the best K / group_topk scores of a group, in their order.
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

// The groups that compete, as a bit mask. Lane g % 32 keeps the score of group g.
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

// Writes the lane's slots of the K ids, best first. `config` is a checked one.
template <typename Math, typename Warp, typename Logits>
RR_HOST_DEVICE inline void ChooseLive(const WarpLanes<Warp>& lanes, const RouterConfig& config, Logits logits,
                                      const float* bias, uint16_t* ids) {
  const TiledScores<Math, Logits> scores(lanes, config, logits, bias);
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
  lanes.warp().Sync();  // The tile is free again.
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_WARP_CHOICE_H_
