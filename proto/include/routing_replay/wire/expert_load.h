// How often each expert was chosen: the C++ form of ExpertLoadResponse in routing_replay.proto.
#ifndef ROUTING_REPLAY_WIRE_EXPERT_LOAD_H_
#define ROUTING_REPLAY_WIRE_EXPERT_LOAD_H_

#include <cstdint>
#include <vector>

namespace routing_replay {

// Recorded rows alone are counted, as each sample shows them: rows that were truncated, replaced or released are not in
// it, and rows that several samples show (prefix references) count once for each.
struct ExpertLoad {
  struct Layer {
    int32_t layer_id = 0;         // Global decoder layer id.
    std::vector<int64_t> counts;  // The layer's E. They sum to rows times the layer's K.
  };
  std::vector<Layer> layers;  // In the order asked.
  int64_t rows = 0;
  int64_t samples = 0;
};

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_WIRE_EXPERT_LOAD_H_
