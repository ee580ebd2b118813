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
#ifndef ROUTING_REPLAY_TRAINER_ALIGNMENT_H_
#define ROUTING_REPLAY_TRAINER_ALIGNMENT_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/diagnose.h"

namespace routing_replay::trainer {

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

#endif  // ROUTING_REPLAY_TRAINER_ALIGNMENT_H_
