// A replay plan from a JSON description, for people and scripts.
//
// Description (fields without a default are required; layers.h and rows.h say what they mean):
//
//   {
//     "geometry": {"num_layers": 27, "moe_layers": [1, 2, …, 26], "num_experts": 64, "top_k": 6},
//     "split": {"pipeline_size": 2, "first_stage_layers": 13},
//     "micro_batch": {
//       "format": "THD", "sequences": [{"sample": "math-7/0", "tokens": 13}],
//       "cu_seqlens_padded": [0, 16], "total_rows": 16, "partition": "zigzag_per_document",
//       "cp_size": 2, "tp_size": 2, "sequence_parallel": true
//     },
//     "rank": {"pp": 1, "cp": 0, "tp": 0}
//   }
//
//   geometry      moe_layers: all layers; num_experts, top_k: one number or one per MoE layer
//   split         absent: one stage. pipeline_size 1, virtual_stages 1, first_stage_layers null,
//                 last_stage_layers null, account_for_embedding false, account_for_loss false
//   micro_batch   format "THD" with cu_seqlens_padded and total_rows, or "BSHD" with batch_size and padded_length;
//                 sequences: sample "", recorded_rows tokens - 1; partition "zigzag_per_document",
//                 "zigzag_per_sequence", "contiguous", "contiguous_per_sequence", "explicit"; cp_size 1, tp_size 1,
//                 sequence_parallel false, row_order "sequence_major" or "batch_major", sp_slice "after_flatten" or
//                 "before_flatten", target_rows null
//   rank          pp 0, chunk null (all chunks), cp 0, tp 0, positions [] (explicit partition)
//
// Plan:
//
//   {
//     "layers": [{"layer": 13, "ordinal": 12, "chunk": 0}, …],
//     "row_map": {"rows": 4, "replayed": 4, "unrecorded": 0, "pads": 0,
//                 "runs": [{"local_row": 0, "stride": 1, "count": 4, "sequence": 0, "row": 0, "state": "replayed"}]},
//     "slices": [{"sequence": 0, "sample": "math-7/0", "rows": [[0, 4]]}],
//     "rows_to_read": 4, "bytes_to_read": 336
//   }
//
// Local rows that no run names are pads; rows are half-open ranges.
#ifndef TRAINER_PLUGIN_LAYOUT_PLAN_JSON_H_
#define TRAINER_PLUGIN_LAYOUT_PLAN_JSON_H_

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
  ReplayPlan plan;
  std::vector<std::string> samples;  // Per sequence of the micro-batch …
  std::vector<int64_t> num_tokens;   // … and its tokens.
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
