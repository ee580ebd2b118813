// The branches of the layer rule: how many decoder layers each stage of the pipeline holds.
#ifndef TRAINER_PLUGIN_LAYOUT_STAGES_H_
#define TRAINER_PLUGIN_LAYOUT_STAGES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "routing_replay/trainer/layers.h"

namespace routing_replay::trainer {

// Stage s = v·P + p is chunk v of pipeline rank p.
struct StageCounts {
  std::vector<int32_t> layers;  // Their sum is L.
  MtpPlacement mtp;
};

// All take a split whose sizes are positive, and give INVALID_ARGUMENT as LayerTable::Create.

// Even, account_for_… and given first or last stage (get_num_layers_to_build).
absl::StatusOr<StageCounts> CountsOfSizes(const LayerSplit& split);
// split.layout is set.
absl::StatusOr<StageCounts> CountsOfLayout(const LayerSplit& split);
// split.hybrid is set.
absl::StatusOr<StageCounts> CountsOfHybrid(const LayerSplit& split);

// Layers of each pipeline rank: the first and the last as the split gives them, `layers` less these spread evenly over
// the others. Nothing where that does not come out even, or layers would be in two stages.
std::optional<std::vector<int32_t>> SpreadLayers(const LayerSplit& split, int32_t layers);

// OK if `stages` stages are a multiple of P, and V, where it is given, is what they make.
absl::Status CheckStages(const LayerSplit& split, size_t stages, absl::string_view field);

// OK unless several stages are on one pipeline rank.
absl::Status CheckOneRank(const LayerSplit& split, size_t stages, absl::string_view field);

// Without a layout MTP follows the last decoder layer: the last chunk of the last rank.
inline MtpPlacement MtpBehindLastStage(const LayerSplit& split, int32_t virtual_stages) {
  return {.layers = split.mtp_num_layers, .pp_rank = split.pipeline_size - 1, .chunk = virtual_stages - 1};
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_STAGES_H_
