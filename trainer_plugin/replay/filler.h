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
  int32_t num_experts = 0;  // E <= 65535, a multiple of ep_size.
  int32_t top_k = 0;        // K <= E
  int32_t ep_size = 1;      // G
};

// The id in slot `slot` of filler row `ordinal` in the MoE layer with this ordinal (global, so that the choice does not
// depend on the pipeline split). Only a mod E matters, so the terms are taken mod E first and 32 bits hold everything.
RR_HOST_DEVICE inline uint16_t FillerId(const FillerShape& shape, uint32_t ordinal, uint32_t slot, uint32_t layer) {
  const uint32_t experts = static_cast<uint32_t>(shape.num_experts), top_k = static_cast<uint32_t>(shape.top_k);
  const uint32_t group = static_cast<uint32_t>(shape.ep_size), per_rank = experts / group;
  const uint32_t rows = (ordinal % experts + layer % experts * group % experts) % experts;
  const uint32_t a = (rows * top_k + slot) % experts;
  return static_cast<uint16_t>(a % group * per_rank + a / group % per_rank);
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_FILLER_H_
