// Filler: expert ids for rows that no route exists for, spread evenly over the ranks of the expert-parallel group.
//
// Dispatchers need K distinct experts in every row, pads included. With o the ordinal of the row among the filler rows
// of this rank (counted after context-parallel slicing), j the slot, l the layer and G the group size:
//
//   a = o·K + j + l·G·K      rank = a mod G      local = ⌊a / G⌋ mod (E / G)      id = rank·(E / G) + local
//
// a mod E ↔ id is one to one where G divides E, so K <= E consecutive values of a give distinct ids, and any run of
// rows loads the ranks alike up to one id. The term in l makes layers differ. Nothing is random: a recompute fills
// alike.
#ifndef TRAINER_PLUGIN_REPLAY_FILLER_H_
#define TRAINER_PLUGIN_REPLAY_FILLER_H_

#include <cstdint>

#include "trainer_plugin/replay/host_device.h"

namespace routing_replay::trainer {

struct FillerShape {
  int32_t num_experts = 0;  // E, a multiple of ep_size.
  int32_t top_k = 0;        // K <= E
  int32_t ep_size = 1;      // G
};

// The id in slot `slot` of filler row `ordinal` in the MoE layer with this ordinal (global, so that the choice does not
// depend on the pipeline split).
RR_HOST_DEVICE inline uint16_t FillerId(const FillerShape& shape, int64_t ordinal, int32_t slot, int32_t layer) {
  const int64_t group = shape.ep_size;
  const int64_t per_rank = shape.num_experts / group;
  const int64_t a = ordinal * shape.top_k + slot + layer * group * shape.top_k;
  return static_cast<uint16_t>(a % group * per_rank + a / group % per_rank);
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_FILLER_H_
