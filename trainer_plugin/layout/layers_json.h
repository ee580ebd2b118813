// The part of a plan's description that says which layers a rank replays: geometry and split, what the rank's
// live model says, which layers the run lacks, and what is left native. rrt_plan_new in
// routing_replay/trainer/capi.h says what the fields hold.
#ifndef TRAINER_PLUGIN_LAYOUT_LAYERS_JSON_H_
#define TRAINER_PLUGIN_LAYOUT_LAYERS_JSON_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "routing_replay/trainer/layers.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {

// Fields of the description; null where they are absent.
struct LayerFields {
  const nlohmann::json* geometry = nullptr;  // Of the model.
  const nlohmann::json* split = nullptr;
  const nlohmann::json* run_geometry = nullptr;  // Where the run's lacks hash layers or native ones.
  std::vector<int32_t> hash_layers;
  const nlohmann::json* model = nullptr;  // Of its "rank".
};

struct DescribedLayers {
  Geometry geometry;
  std::optional<LayerSplit> split;  // Nothing where the live model alone says which layers the rank has.
  std::vector<OwnedLayer> layers;   // To replay on this rank; ids ascend.
  int32_t mtp_layers = 0;           // In the chunks planned for, and left out.
};

// INVALID_ARGUMENT (kField) with the names of the description: for a field that is missing, unknown or of the wrong
// kind, for everything that LayerTable::Create and OwnedMoeLayers refuse, and with field "rank.model" and the first
// difference in words where the live model is not as the split says. Of the rank, all but `rows` counts.
absl::StatusOr<DescribedLayers> DescribedLayersFromJson(const LayerFields& fields, const PlanRank& rank);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_LAYERS_JSON_H_
