// The catalogue of known alignment mistakes: which rows or layers a rank's routers get if a mistake is made.
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
  std::string what;  // A description in one sentence.
};

// What a rank's routers get if a mistake is made: the row of each local row, or the decoder layer of each of its
// layers. A mistake may lead to dense layers or to ids that do not exist.
template <typename Part>
struct Way {
  std::vector<std::string> mistakes;  // All mistakes that lead to `seen` in this layout.
  std::string what;
  // The opposite mistake: the model really has the rows or layers `seen`, but the correct ones were replayed.
  Mistake reversed;
  std::vector<Part> seen;  // One per local row or layer.
};
using RowWay = Way<LocalRow>;
using LayerWay = Way<int32_t>;

// Returns the correct way first, then each mistake that leads to other rows in this layout, simple mistakes before
// combined ones. Fails with the errors of BuildRowMap.
absl::StatusOr<std::vector<RowWay>> RowWays(const MicroBatchLayout& layout, const RowRank& rank);

// Returns the correct layers of a rank, or of one of its chunks, first, and then each mistake that leads to other
// layers. Fails with the errors of LayerTable and OwnedMoeLayers.
absl::StatusOr<std::vector<LayerWay>> LayerWays(const Geometry& geometry, const LayerSplit& split,
                                                const PlanRank& rank);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_MISTAKES_H_
