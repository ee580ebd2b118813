// A replay plan from a JSON description, for people, scripts and other languages: rrt_plan_new in
// routing_replay/trainer/capi.h says what a description holds, rrt_plan_json what a plan; layers.h and rows.h what it
// means.
#ifndef TRAINER_PLUGIN_LAYOUT_PLAN_JSON_H_
#define TRAINER_PLUGIN_LAYOUT_PLAN_JSON_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {

// A plan, and what of its description a fetch needs too.
struct DescribedPlan {
  Geometry geometry;
  std::optional<LayerSplit> split;  // Nothing where the live model alone says which layers the rank has.
  PlanRank rank;
  ReplayPlan plan;
  MicroBatchLayout layout;
  std::vector<std::string> samples;   // Per sequence of layout.
  std::vector<SequencePiece> pieces;  // What the plan's sequences are, where some are put together; else empty.
  bool last_row_filler = false;
  std::vector<std::string> warnings;  // In words: see rrt_plan_json.
  int32_t mtp_layers = 0;             // In the chunks planned for; they are not in the plan.

  // Of the plan: those of the layout, or the pieces.
  size_t sequences() const { return pieces.empty() ? samples.size() : pieces.size(); }
  const std::string& sample(size_t sequence) const {
    return pieces.empty() ? samples[sequence] : pieces[sequence].sample;
  }
  // T of a sequence that is a whole sample; of a piece it is not known.
  std::optional<int64_t> num_tokens(size_t sequence) const {
    return pieces.empty() ? std::optional(layout.sequences[sequence].tokens) : std::nullopt;
  }
  // Per sequence, as RealignInput has them; empty without last_row_filler.
  std::vector<int64_t> last_rows() const;
};

// INVALID_ARGUMENT (kField) naming a field that is missing, unknown or of the wrong kind, or what MakeReplayPlan and
// the functions before it say.
absl::StatusOr<DescribedPlan> DescribedPlanFromJson(absl::string_view description);
// One line.
std::string ToJson(const DescribedPlan& plan);

// Both: the plan as one line of JSON.
absl::StatusOr<std::string> PlanFromJson(absl::string_view description);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_PLAN_JSON_H_
