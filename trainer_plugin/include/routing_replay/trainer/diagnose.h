// Which known mistake explains the routes that a rank's routers were given.
//
// Shapes are the same for most mistakes of alignment, so nothing fails: the router replays the experts of other tokens
// or layers. Given the layout that the trainer really has and what its routers really got, each mistake known from
// Megatron-based trainers (public threads of verl, slime, miles, SkyRL, NeMo-RL, ms-swift, AReaL and ROLL) is made on
// purpose, and those whose result is what was seen are named. Shapes: [local rows], [MoE layers of the rank].
#ifndef ROUTING_REPLAY_TRAINER_DIAGNOSE_H_
#define ROUTING_REPLAY_TRAINER_DIAGNOSE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/layers.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/row_map.h"
#include "routing_replay/trainer/rows.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {

// One way to come to rows, or to layers, and how much of what was seen it gives.
struct Explanation {
  // Names of the mistakes that cannot be told apart in this layout; "none" is the right way.
  std::vector<std::string> mistakes;
  std::string what;  // The first of them in a sentence.
  int64_t matched = 0;
  int64_t compared = 0;

  bool exact() const { return matched == compared; }
};

// All explanations of the rows, the best first; of equals the right way, then the simpler mistake. `observed`: per
// local row the row whose route was replayed there, any other state than kReplayed where none was. INVALID_ARGUMENT as
// BuildRowMap, and (kShape, field "observed.rows") for another number of local rows.
absl::StatusOr<std::vector<Explanation>> ExplainRows(const MicroBatchLayout& layout, const RowRank& rank,
                                                     absl::Span<const LocalRow> observed);

// The same for layers. `observed`: decoder layer ids whose routes the rank's MoE layers were given, in the order of
// OwnedMoeLayers, without the rank's native_layers. INVALID_ARGUMENT as OwnedMoeLayers, and (kShape, field
// "observed.layers") for another number.
absl::StatusOr<std::vector<Explanation>> ExplainLayers(const Geometry& geometry, const LayerSplit& split,
                                                       const PlanRank& rank, absl::Span<const int32_t> observed);

// Ids in row-major order, int32, unused slots -1.
struct RouteIds {
  int64_t rows = 0;
  int32_t layers = 0;
  int32_t top_k = 0;
  std::vector<int32_t> ids;  // [rows][layers][top_k]
};

struct IdExplanation {
  Explanation rows;
  Explanation layers;  // Both count pairs of a local row and a layer.
};

// The best explanation of ids that were seen at the routers, [local rows][local MoE layers][K], by the recorded ones,
// per sequence [rows][all MoE layers][K]. Ids of a row are compared as sets. Local rows where a way replays nothing are
// not compared. INVALID_ARGUMENT as above, and (kShape, fields "observed.ids", "recorded") for shapes that do not fit.
absl::StatusOr<IdExplanation> ExplainIds(const Geometry& geometry, const LayerSplit& split,
                                         const MicroBatchLayout& layout, const PlanRank& rank,
                                         absl::Span<const RouteIds> recorded, const RouteIds& observed);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_DIAGNOSE_H_
