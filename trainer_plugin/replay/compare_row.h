// Comparing one row, shared by the CPU code and the CUDA kernels.
#ifndef TRAINER_PLUGIN_REPLAY_COMPARE_ROW_H_
#define TRAINER_PLUGIN_REPLAY_COMPARE_ROW_H_

#include <cstdint>

#include "routing_replay/trainer/compare_counters.h"
#include "trainer_plugin/replay/router_row.h"

namespace routing_replay::trainer {

// Tensors as compare.h describes them; Logits is a pointer to them, or what can be read like one. What is compared with
// is `live`, or the live choice of `logits`.
template <typename Logits>
struct CompareTensors {
  int32_t id_bytes;
  const uint8_t* replayed;
  const RowState* states;
  const uint8_t* live;
  Logits logits;
  const float* expert_bias;  // Or null.
};

// The comparison of one row.
struct RowComparison {
  int32_t rows = 0;  // 0 if the row takes no part.
  int32_t different_rows = 0;
  int32_t disjoint_rows = 0;
  int32_t common_ids = 0;
};

template <typename Lanes>
RR_HOST_DEVICE inline void LoadUncheckedIds(const Lanes& lanes, const RouterConfig& config, const uint8_t* ids,
                                            int32_t id_bytes, int64_t row, uint16_t* out) {
  lanes.ForEachSlot(config.top_k, [&](int32_t i, int32_t slot) {
    out[i] = static_cast<uint16_t>(LoadId(ids, id_bytes, row * config.top_k + slot));
  });
}

// Both as sets, given the lane's slots of each.
template <typename Lanes>
RR_HOST_DEVICE inline RowComparison CompareSets(const Lanes& lanes, int32_t k, const uint16_t* replayed,
                                                const uint16_t* live) {
  bool replayed_is_live[Lanes::kSlotsPerLane], live_is_replayed[Lanes::kSlotsPerLane], again[Lanes::kSlotsPerLane];
  lanes.ForEachSlot(k, [&](int32_t i, int32_t) { replayed_is_live[i] = live_is_replayed[i] = again[i] = false; });
  lanes.VisitSlots(live, 0, k, [&](uint16_t id, int32_t) {
    lanes.ForEachSlot(k, [&](int32_t i, int32_t) { replayed_is_live[i] |= replayed[i] == id; });
  });
  lanes.VisitSlots(replayed, 0, k, [&](uint16_t id, int32_t visited) {
    lanes.ForEachSlot(k, [&](int32_t i, int32_t slot) {
      live_is_replayed[i] |= live[i] == id;
      again[i] |= visited < slot && replayed[i] == id;
    });
  });
  int32_t common = 0, alone = 0;
  lanes.ForEachSlot(k, [&](int32_t i, int32_t) {
    common += replayed_is_live[i] && !again[i];
    alone += !replayed_is_live[i] || !live_is_replayed[i];
  });
  common = lanes.SumLanes(common);
  return {.rows = 1, .different_rows = lanes.SumLanes(alone) > 0, .disjoint_rows = common == 0, .common_ids = common};
}

// Every lane gets the row's comparison.
template <typename Math, typename Lanes, typename Logits>
RR_HOST_DEVICE inline RowComparison CompareRow(const Lanes& lanes, const RouterConfig& config,
                                               const CompareTensors<Logits>& tensors, int64_t row) {
  if (tensors.states[row] != RowState::kReplayed) return {};
  uint16_t replayed[Lanes::kSlotsPerLane], live[Lanes::kSlotsPerLane];
  LoadUncheckedIds(lanes, config, tensors.replayed, tensors.id_bytes, row, replayed);
  if (tensors.live != nullptr) {
    LoadUncheckedIds(lanes, config, tensors.live, tensors.id_bytes, row, live);
  } else {
    ChooseLive<Math>(lanes, config, tensors.logits + row * config.num_experts, tensors.expert_bias, live);
  }
  return CompareSets(lanes, config.top_k, replayed, live);
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_COMPARE_ROW_H_
