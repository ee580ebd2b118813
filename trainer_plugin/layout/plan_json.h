// Converts replay plans from and to JSON, for people, scripts and other languages. rrt_plan_new in
// routing_replay/trainer/capi.h lists the fields of a description and those of a plan; layers.h, rows.h and padding.h
// explain them; fields.h has the names.
#ifndef TRAINER_PLUGIN_LAYOUT_PLAN_JSON_H_
#define TRAINER_PLUGIN_LAYOUT_PLAN_JSON_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "routing_replay/trainer/diagnose.h"
#include "routing_replay/trainer/padding.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {

// "micro_batch" of a description.
struct DescribedMicroBatch {
  MicroBatchLayout layout;
  std::vector<std::string> samples;   // One per entry of layout.sequences; "" if no sample is named.
  std::vector<SequencePiece> pieces;  // All sequences as pieces, if any of them consists of pieces; else empty.
  bool last_row_filler = false;
  // The first difference between the named policy's prediction and what was passed, or why it predicts nothing.
  std::vector<std::string> warnings;
};

// A plan together with those parts of its description that a fetch needs.
struct DescribedPlan : DescribedMicroBatch {
  Geometry geometry;
  LayerSplit split;
  PlanRank rank;
  ReplayPlan plan;

  // Number of sequences of the plan. If any sequence consists of pieces, each piece counts as one.
  size_t sequences() const { return pieces.empty() ? samples.size() : pieces.size(); }
  const std::string& sample(size_t sequence) const {
    return pieces.empty() ? samples[sequence] : pieces[sequence].sample;
  }
  // Returns T of a sequence that is a whole sample; not set for a piece.
  std::optional<int64_t> num_tokens(size_t sequence) const {
    return pieces.empty() ? std::optional(layout.sequences[sequence].tokens) : std::nullopt;
  }
  // One per sequence, for RealignInput::last_rows; empty without last_row_filler.
  std::vector<int64_t> last_rows() const;
};

// Makes the plan for a description in JSON. Fails with INVALID_ARGUMENT (kField) naming a field that is missing,
// unknown or of the wrong kind, and with the errors of LayerTable::Create, OwnedMoeLayers, MakeReplayPlan and the
// functions that they call; fields then have the names of the description.
absl::StatusOr<DescribedPlan> DescribedPlanFromJson(absl::string_view description);
nlohmann::ordered_json PlanToJson(const DescribedPlan& plan);
// Returns the plan as JSON on one line. Sample names may be any bytes; bytes that are not UTF-8 are replaced.
absl::StatusOr<std::string> PlanFromJson(absl::string_view description);

// Reads "micro_batch". Fails with the errors that DescribedPlanFromJson has for "micro_batch". Whether the rows are
// valid is checked only by BuildRowMap.
absl::StatusOr<DescribedMicroBatch> MicroBatchFromJson(const nlohmann::json& json);
// The layout as "micro_batch" states it, without its sequences.
nlohmann::ordered_json LayoutToJson(const MicroBatchLayout& layout);
// Reads "micro_batch.padding".
absl::StatusOr<PaddingPolicy> PaddingPolicyFromJson(const nlohmann::json& json);

// Judges by JudgeAlignment whether the record fits the ids `live` of the rank's routers: their own choice or, if
// `replayed`, what they replayed. `recorded`: one entry per sequence of the description. rrt_judge_alignment shows the
// JSON, in which matched and compared count experts.
absl::StatusOr<nlohmann::ordered_json> JudgeIds(const DescribedPlan& described, const std::vector<RouteIds>& recorded,
                                                const RouteIds& live, bool replayed);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_PLAN_JSON_H_
