// A micro-batch from JSON: "micro_batch" of a plan's description, rrt_plan_new in routing_replay/trainer/capi.h.
#ifndef TRAINER_PLUGIN_LAYOUT_MICRO_BATCH_JSON_H_
#define TRAINER_PLUGIN_LAYOUT_MICRO_BATCH_JSON_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "routing_replay/trainer/rows.h"

namespace routing_replay::trainer {

struct DescribedMicroBatch {
  MicroBatchLayout layout;
  std::vector<std::string> samples;  // Parallel to layout.sequences; "" where not named.
  // Of all sequences, where one of them is put together; else empty.
  std::vector<SequencePiece> pieces;
  bool last_row_filler = false;  // See DescribedPlan::last_rows.
  // Of the DP x CP group, where the micro-batch is cut over local_cp_size neighbours of it.
  std::optional<int32_t> dp_cp_size;
  // Hazards of the named policy, and the first difference between its prediction and what was passed.
  std::vector<std::string> warnings;
};

// INVALID_ARGUMENT naming a field of "micro_batch" that is missing, unknown or of the wrong kind, or what the policy
// and the functions of sequences.h and context_parallel.h say. Whether the rows can be is asked by BuildRowMap.
absl::StatusOr<DescribedMicroBatch> MicroBatchFromJson(const nlohmann::json& json);

// A status of a function that names fields of MicroBatchLayout, which the description has below "micro_batch".
absl::Status InMicroBatch(const absl::Status& status);

// The layout as "micro_batch" states it, without its sequences.
nlohmann::ordered_json LayoutToJson(const MicroBatchLayout& layout);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_MICRO_BATCH_JSON_H_
