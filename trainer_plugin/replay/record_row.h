// Recording one row, shared by the CPU code and the CUDA kernels.
#ifndef TRAINER_PLUGIN_REPLAY_RECORD_ROW_H_
#define TRAINER_PLUGIN_REPLAY_RECORD_ROW_H_

#include <cstdint>

#include "trainer_plugin/replay/router_row.h"

namespace routing_replay::trainer {

// Tensors as record.h describes them; Logits is a pointer to them, or what can be read like one.
template <typename Logits>
struct RecordTensors {
  int32_t id_bytes;
  Logits logits;
  const float* expert_bias;  // Or null.
  uint8_t* indices;
};

template <typename Math, typename Lanes, typename Logits>
RR_HOST_DEVICE inline void RecordRow(const Lanes& lanes, const RouterConfig& config,
                                     const RecordTensors<Logits>& tensors, int64_t row) {
  uint16_t ids[Lanes::kSlotsPerLane];
  ChooseLive<Math>(lanes, config, tensors.logits + row * config.num_experts, tensors.expert_bias, ids);
  StoreRowIds(lanes, config, ids, tensors.id_bytes, row, tensors.indices);
}

// Id number `index` of an array, compact. Returns whether it had to be clamped.
template <typename Id>
RR_HOST_DEVICE inline bool RecordId(const Id* ids, int64_t index, int32_t num_experts, int32_t id_bytes,
                                    uint8_t* indices) {
  const int64_t id = static_cast<int64_t>(ids[index]);
  const int64_t clamped = id < 0 ? 0 : id < num_experts ? id : num_experts - 1;
  StoreId(indices, id_bytes, index, static_cast<uint32_t>(clamped));
  return clamped != id;
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_RECORD_ROW_H_
