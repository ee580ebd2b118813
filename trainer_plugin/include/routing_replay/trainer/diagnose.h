// Checks that a rank's routers replay routes at the rows and layers at which they were recorded; if not, names the
// known mistake that explains it best.
//
// Most mistakes of alignment do not change shapes, so nothing fails: the router replays the experts of other tokens or
// layers. This code takes the layout that the trainer really has, makes each mistake known from Megatron-based trainers
// on purpose (public threads of verl, slime, miles, SkyRL, NeMo-RL, ms-swift, AReaL and ROLL), and names the one whose
// routes fit best.
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

// One way to assign rows or layers, and how well it explains the observed experts.
struct Explanation {
  // Names of the mistakes that give the same assignment in this layout; "none" is the correct one.
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

// Joins the records of pieces to one record per sequence, [rows of the sample] each; -1 where no piece has a row.
// INVALID_ARGUMENT (kShape, field "recorded") for another number of records, or shapes that do not match.
absl::StatusOr<std::vector<RouteIds>> JoinPieces(const Geometry& geometry, const MicroBatchLayout& layout,
                                                 absl::Span<const SequencePiece> pieces,
                                                 absl::Span<const RouteIds> recorded);

// Judges by comparing the record with the choice of the model's own routers.
//
// Newer weights, other kernels and other precisions change some experts of many tokens. But routes of other tokens or
// layers have hardly more experts in common with the live choice than by chance. So the measure is the share of experts
// that the record explains beyond chance,
//
//   kept = (share in common - chance) / (1 - chance)        chance: of the same rows, each with another row's record
//
// which is 1 for equal weights and 0 for unrelated rows, whatever E, K and popular experts there are. Neighbouring
// tokens are slightly related (about 0.2 in deep layers of Mixtral, arXiv 2401.04088, table 5).

// With mere drift `kept` is above this, and no known mistake fits better by this much.
inline constexpr double kLeastKept = 0.25;
// With fewer pairs of a row and a layer nothing is concluded.
inline constexpr int64_t kLeastPairs = 64;

struct Alignment {
  // True if a sequence, a layer, or the whole keeps less than kLeastKept (with a margin of four standard deviations),
  // or if a known mistake keeps more than the plan by kLeastKept.
  bool misaligned = false;
  double kept = 0;            // For the plan's own assignment.
  double chance = 0;          // Share of experts in common with another row's record.
  double explained_kept = 0;  // For the best explanation, over the pairs that the plan compares.
  // The best explanation: "none" if no known mistake keeps more than the plan by kLeastKept.
  Explanation rows;
  Explanation layers;
  // The sequence and layer whose record fits the plan worst; nothing if no row of it is compared.
  std::optional<int32_t> sequence;
  std::optional<int32_t> layer_id;
};

// What is compared: recorded ids of a rank's sequences, and its routers' live choice. A row's ids count as a set.
struct AlignmentInput {
  const Geometry& geometry;
  const LayerSplit* split = nullptr;    // Null if unknown: then explanations do not include layers of other ranks.
  absl::Span<const OwnedLayer> layers;  // The plan's layers.
  const MicroBatchLayout& layout;
  const PlanRank& rank;
  // One per sequence of the layout, [rows][all MoE layers][K], -1 where unknown; no rows for a sequence that is left
  // out.
  absl::Span<const RouteIds> recorded;
  const RouteIds& live;  // [local rows][layers][K], -1 where unknown.
  // True: `live` holds the ids that the routers were given to replay, not their own choice. Then explanations describe
  // what was replayed instead of what the plan says, and the best one only needs to fit better than the plan.
  bool replayed = false;
};

// INVALID_ARGUMENT as BuildRowMap, LayerTable and OwnedMoeLayers, and (kShape, fields "observed.ids", "recorded") for
// shapes that do not match.
absl::StatusOr<Alignment> JudgeAlignment(const AlignmentInput& input);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_DIAGNOSE_H_
