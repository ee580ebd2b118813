// Checks that a rank's routers replay each route at the row and layer where it was recorded. If they do not, names the
// known mistake that explains the observation best.
//
// Most alignment mistakes do not change shapes, so nothing fails: the router silently replays the experts of other
// tokens or layers. This code starts from the layout that the trainer really uses, computes the routes that each known
// mistake would produce (mistakes known from public threads of verl, slime, miles, SkyRL, NeMo-RL, ms-swift, AReaL and
// ROLL), and names the mistake whose routes fit best.
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

// One hypothesis about which rows or layers were used, and how well it explains the observed experts.
struct Explanation {
  // Mistakes that lead to these rows or layers ("none": the plan's own): all of them if AlignmentInput::replayed is
  // true. Otherwise one: the mistake that leads from these rows or layers to the plan's.
  std::vector<std::string> mistakes;
  std::string what;      // The first of these mistakes, described in a sentence.
  int64_t matched = 0;   // Of the compared experts, how many are the same in both.
  int64_t compared = 0;  // Number of experts compared, the record's with the observed ones.

  bool exact() const { return matched == compared; }
};

// Expert ids in row-major order; a slot without an id holds -1.
struct RouteIds {
  int64_t rows = 0;
  int32_t layers = 0;
  int32_t top_k = 0;
  std::vector<int32_t> ids;  // [rows][layers][top_k]
};

// Joins the records of pieces into one record per sequence; rows that no piece covers are -1. INVALID_ARGUMENT (kShape,
// field "recorded") if the number of records is not that of the pieces.
absl::StatusOr<std::vector<RouteIds>> JoinPieces(const Geometry& geometry, const MicroBatchLayout& layout,
                                                 absl::Span<const SequencePiece> pieces,
                                                 absl::Span<const RouteIds> recorded);

// Compares the recorded experts with the live choice of the model's own routers.
//
// Newer weights, other kernels and other precisions change some experts of many tokens. But if the record belongs to
// other tokens or layers, it has hardly more experts in common with the live choice than by chance. So the measure is
// how far the share of common experts is above chance,
//
//   kept = (share - chance) / (1 - chance)
//
//   share: of the experts, how many the record and the live choice have in common
//   chance: what this share would be if each row were compared with the record of another row
//
// which is 1 for equal weights and 0 for unrelated rows, whatever E, K and popular experts there are. Neighbouring
// tokens are slightly related (about 0.2 in deep layers of Mixtral, arXiv 2401.04088, table 5).

// A limit with two uses. If weights have only drifted, `kept` of the plan is above this value. And a known mistake is
// named only if its `kept` exceeds that of the plan by more than this value (if AlignmentInput::replayed, by any
// amount).
inline constexpr double kLeastKept = 0.25;
// With fewer (row, layer) pairs to compare, nothing is concluded.
inline constexpr int64_t kLeastPairs = 64;

struct Alignment {
  // True if `kept` of a sequence, of a layer, or of everything is below kLeastKept (by at least four standard
  // deviations), or if a known mistake is named (see kLeastKept).
  bool misaligned = false;
  double kept = 0;            // The measure above for the rows and layers of the plan.
  double chance = 0;          // Share of experts in common with the record of another row.
  double explained_kept = 0;  // The measure for the rows and layers of the best explanation.
  // The best explanation: "none" if no known mistake fits so well that it is named (see kLeastKept).
  Explanation rows;
  Explanation layers;
  // The sequence whose record fits the plan worst, and the layer that fits worst, over all sequences. Not set if no
  // rows were compared.
  std::optional<int32_t> sequence;
  std::optional<int32_t> layer_id;
};

// What is compared: the recorded ids of a rank's sequences, and the live choice of its routers. The order of the ids
// within a row does not matter.
struct AlignmentInput {
  const Geometry& geometry;
  const LayerSplit& split;
  const MicroBatchLayout& layout;
  const PlanRank& rank;
  // One per sequence of the layout, [rows][all MoE layers][K] with the K of `live`, -1 where unknown; no rows for a
  // sequence that is left out.
  absl::Span<const RouteIds> recorded;
  const RouteIds& live;  // [local rows][layers][K], -1 where unknown.
  // True: `live` holds the ids that the routers were given to replay, not their own choice. Explanations then say what
  // was replayed instead of what the plan says, and the best one only has to fit better than the plan.
  bool replayed = false;
};

// Fails with the INVALID_ARGUMENT errors of BuildRowMap, LayerTable, OwnedMoeLayers and WithoutNativeLayers, and with
// kShape if `live` does not have the rank's rows and layers (field "observed.ids"), or if the number of records is not
// that of the sequences (field "recorded"). Requires that the records have the shapes above.
absl::StatusOr<Alignment> JudgeAlignment(const AlignmentInput& input);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_DIAGNOSE_H_
