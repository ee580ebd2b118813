// The layers of a rank as its live model names them. Every Megatron-Core layer knows its layer_number
// (TransformerLayer.layer_number, TopKRouter.set_layer_number; global over pipeline ranks and chunks, from 1 on); what
// the modules say is the truth that a description of the split is checked against, and what stands in where there is
// none.
#ifndef ROUTING_REPLAY_TRAINER_LIVE_LAYERS_H_
#define ROUTING_REPLAY_TRAINER_LIVE_LAYERS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/layers.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {

// The routers of one model chunk, found by a walk over its modules, in any order.
struct LiveChunk {
  std::vector<int32_t> layer_numbers;      // Of layers in the decoder: global, from 1 on.
  std::vector<int32_t> mtp_layer_numbers;  // Of layers in the MTP block: from 1 on again, never looked up.
};

// The MoE layers of a rank of these chunks (v = 0, 1, …); layer ids ascend. INVALID_ARGUMENT (kField, field
// "rank.model", layer) for a layer_number that no MoE layer of the geometry has, or that is there twice: both are what
// MTP layers, or a second copy of the decoder, look like when they are taken for the decoder's.
absl::StatusOr<std::vector<OwnedLayer>> OwnedMoeLayers(const Geometry& geometry, absl::Span<const LiveChunk> chunks);

// The first difference between the model of pipeline rank `pp_rank` and the split, in words with both sides; nothing if
// they agree. Routers of `native_layers` may be there or not. Chunks are compared one by one: the same layers in other
// chunks differ. MTP layers are compared by their number alone, and may have no router (a dense MTP layer has none).
// Errors as OwnedMoeLayers.
absl::StatusOr<std::optional<std::string>> LiveDifference(const Geometry& geometry, const LayerTable& table,
                                                          int32_t pp_rank, absl::Span<const LiveChunk> chunks,
                                                          absl::Span<const int32_t> native_layers = {});

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_LIVE_LAYERS_H_
