// Whether a rank's routers replay routes at the rows and layers that they were recorded at, and if not, which known
// mistake explains it.
//
// Shapes are the same for most mistakes of alignment, so nothing fails: the router replays the experts of other tokens
// or layers. Given the layout that the trainer really has, each mistake known from Megatron-based trainers (public
// threads of verl, slime, miles, SkyRL, NeMo-RL, ms-swift, AReaL and ROLL) is made on purpose, and the one whose routes
// fit best is named.
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
#include "routing_replay/trainer/rows.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {

// One way to come to rows, or to layers, and how many experts of what was seen it gives.
struct Explanation {
  // Names of the mistakes that cannot be told apart in this layout; "none" is the right way.
  std::vector<std::string> mistakes;
  std::string what;  // The first of them in a sentence.
  int64_t matched = 0;
  int64_t compared = 0;

  bool exact() const { return matched == compared; }
};

// Ids in row-major order, int32, unused slots -1.
struct RouteIds {
  int64_t rows = 0;
  int32_t layers = 0;
  int32_t top_k = 0;
  std::vector<int32_t> ids;  // [rows][layers][top_k]
};

// The record of each sequence out of those of its pieces, [rows of the sample] each; -1 where no piece has a row.
// INVALID_ARGUMENT (kShape, field "recorded") for another number of records, or shapes that do not fit.
absl::StatusOr<std::vector<RouteIds>> JoinPieces(const Geometry& geometry, const MicroBatchLayout& layout,
                                                 absl::Span<const SequencePiece> pieces,
                                                 absl::Span<const RouteIds> recorded);

// Judged by what the model's own routers choose beside the record.
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
  // The best explanation: "none" where no known mistake keeps more than the plan itself by kLeastKept.
  Explanation rows;
  Explanation layers;
  // Whose record fits worst as planned; nothing where no row of a sequence, or layer, is compared.
  std::optional<int32_t> sequence;
  std::optional<int32_t> layer_id;
};

// The record of a rank's sequences as its plan has them, and the live choice beside it: ids of a row are compared as
// sets.
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
  // `live` is not the routers' own choice but what they were given to replay: explanations name what was done then
  // instead of what was done in the plan, and the best one need only fit better than the plan.
  bool replayed = false;
};

// INVALID_ARGUMENT as BuildRowMap, LayerTable and OwnedMoeLayers, and (kShape, fields "observed.ids", "recorded") for
// shapes that do not fit.
absl::StatusOr<Alignment> JudgeAlignment(const AlignmentInput& input);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_DIAGNOSE_H_
