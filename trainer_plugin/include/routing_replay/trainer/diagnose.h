// Which known mistake explains the routes that a rank's routers were given.
//
// Shapes are the same for most mistakes of alignment, so nothing fails: the router replays the experts of other tokens
// or layers. Given the layout that the trainer really has and what its routers really got, each mistake known from
// Megatron-based trainers (public threads of verl, slime, miles, SkyRL, NeMo-RL, ms-swift, AReaL and ROLL) is made on
// purpose, and those whose result is what was seen are named. Shapes: [local rows], [MoE layers of the rank].
#ifndef ROUTING_REPLAY_TRAINER_DIAGNOSE_H_
#define ROUTING_REPLAY_TRAINER_DIAGNOSE_H_

#include <cstdint>
#include <optional>
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

// The record of each sequence out of those of its pieces, [rows of the sample] each; -1 where no piece has a row.
// INVALID_ARGUMENT (kShape, field "recorded") for another number of records, or shapes that do not fit.
absl::StatusOr<std::vector<RouteIds>> JoinPieces(const Geometry& geometry, const MicroBatchLayout& layout,
                                                 absl::Span<const SequencePiece> pieces,
                                                 absl::Span<const RouteIds> recorded);

// Whether recorded routes are replayed at the rows and layers that they were recorded at, judged by what the model's
// own routers choose there.
//
// Weights that have moved on since the rollout, other kernels and other precisions change some experts of many tokens;
// routes of other tokens or layers have hardly more experts in common with the live choice than chance gives. So what
// counts is the share of experts that the record explains beyond chance,
//
//   kept = (share in common - chance) / (1 - chance)        chance: of the same rows, each with another row's record
//
// which is 1 for equal weights and 0 for unrelated rows, whatever E, K and popular experts there are. Neighbouring
// tokens are related a little (about 0.2 in deep layers of Mixtral, arXiv 2401.04088, table 5).

// Drift keeps more than this of the record, and no known mistake fits better by it.
inline constexpr double kLeastKept = 0.25;
// Pairs of a row and a layer without which nothing is concluded.
inline constexpr int64_t kLeastPairs = 64;

struct Alignment {
  // A sequence, a layer, or all of them keep less than kLeastKept, four standard deviations allowed; or rows or layers
  // of a known mistake keep more than they do as planned, by kLeastKept.
  bool misaligned = false;
  double kept = 0;            // As planned.
  double chance = 0;          // Share of experts in common with another row's record.
  double explained_kept = 0;  // Under the best explanation, counted over the pairs that are compared as planned.
  // The best explanation, in terms of what was replayed: "none" where no known mistake keeps more than the plan itself
  // by kLeastKept. Both count experts.
  Explanation rows;
  Explanation layers;
  // Whose record fits worst as planned; nothing where no row of a sequence, or layer, is compared.
  std::optional<int32_t> sequence;
  std::optional<int32_t> layer_id;
};

// The record of a rank's sequences as its plan has them, and the live choice beside it.
struct AlignmentInput {
  const Geometry& geometry;
  const LayerSplit* split = nullptr;    // Nothing where it is not known: layers of other ranks are in no explanation.
  absl::Span<const OwnedLayer> layers;  // Of the plan.
  const MicroBatchLayout& layout;
  const PlanRank& rank;
  // Per sequence of the layout, [rows][all MoE layers][K], -1 where nothing is known; no rows for a sequence that is
  // left out.
  absl::Span<const RouteIds> recorded;
  const RouteIds& live;  // [local rows][layers][K], -1 likewise.
};

// INVALID_ARGUMENT as ExplainIds.
absl::StatusOr<Alignment> JudgeAlignment(const AlignmentInput& input);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_DIAGNOSE_H_
