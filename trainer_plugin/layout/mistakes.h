// The catalogue of known mistakes: what a rank's routers get if one is made.
#ifndef TRAINER_PLUGIN_LAYOUT_MISTAKES_H_
#define TRAINER_PLUGIN_LAYOUT_MISTAKES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "routing_replay/trainer/layers.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/row_map.h"
#include "routing_replay/trainer/rows.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {

struct Mistake {
  std::string name;
  std::string what;  // In a sentence.
};

struct RowWay {
  std::vector<std::string> mistakes;  // All mistakes that give these rows here.
  std::string what;
  // The reverse: what was done if these are the model's own rows and the correct way's rows were replayed there.
  Mistake reversed;
  std::vector<LocalRow> rows;
};

// The correct way first, then each mistake that gives other rows in this layout, simple ones before composed ones.
// INVALID_ARGUMENT as BuildRowMap.
absl::StatusOr<std::vector<RowWay>> RowWays(const MicroBatchLayout& layout, const RowRank& rank);

struct LayerWay {
  std::vector<std::string> mistakes;
  std::string what;
  Mistake reversed;
  std::vector<int32_t> layers;  // Decoder ids; they may be dense or not exist.
};

// The same for the layers of a rank, or of one of its chunks. INVALID_ARGUMENT as LayerTable and OwnedMoeLayers.
absl::StatusOr<std::vector<LayerWay>> LayerWays(const Geometry& geometry, const LayerSplit& split,
                                                const PlanRank& rank);
// For layers of a rank whose split is unknown: only mistakes of numbering.
std::vector<LayerWay> LayerWays(const Geometry& geometry, const std::vector<OwnedLayer>& layers);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_MISTAKES_H_
