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
//                 sequences: sample "", tokens, recorded_rows tokens - 1, first_row 0 (rows of padding before it);
//                   media_rows []: what each medium becomes in the model, where `tokens` counts it once;
//                 partition "zigzag_per_document", "zigzag_per_sequence", "contiguous", "contiguous_per_sequence",
//                   "explicit"; cp_size 1, tp_size 1, sequence_parallel false;
//                 row_order "sequence_major" or "batch_major", sp_slice "after_flatten" or "before_flatten";
//                 tokens_per_sample null, target_rows null.
//                 Instead of what each sequence has: cu_seqlens, the real boundaries (which are the padded ones too
//                   where no others are given); or attention_mask, lists of 0 and 1, with left_padding true where the
//                   model sees the padding on the left (BSHD) and false where packing strips it.
//                 Context parallelism: hierarchical_cp_sizes [] is checked, and changes no row; local_cp_size, the size
//                   for this micro-batch (dynamic and hybrid CP), goes before cp_size.
//                 padding: a policy, see below
//   rank          pp 0, chunk null (all chunks), cp 0, tp 0, positions [] (explicit partition); dp_cp instead of cp,
//   the
//                 rank in the DP x CP group of micro_batch.dp_cp_size ranks, with local_cp_size
//
// "padding": {"policy": NAME, options…} under micro_batch names the framework's padding. Format, partition and shape
// that are not given are as it predicts. What is given wins; the first difference is a warning. Names, and options with
// their defaults (routing_replay/trainer/padding/ says what they mean):
//
//   megatron   packed true, use_per_sequence_balancing false, hybrid_context_parallel false, seq_length null
//   verl       use_remove_padding true, cp_layout "zigzag" or "contiguous", fp8 false, csa_window_size null,
//              pad_to_length_bucket null, forced_max_seqlen null, local_cp_size null
//   slime      data_pad_size_multiplier 128, allgather_cp false
//   miles      qkv_format "thd" or "bshd", data_pad_size_multiplier 128, allgather_cp false, compress_ratios []
//   skyrl      remove_microbatch_padding true, fp8 false, release "main" or "pr1327"
//   nemo_rl    sequence_packing true, make_sequence_length_divisible_by 1, fp8_recipe "" "delayed" "tensorwise"
//              "blockwise" or "mxfp8", hybridep false, pp 1, max_packed_length_in_batch 0 (that of this pack)
//   ms_swift   padding_free true, fp8_recipe "", fp8_format "", fp4_format "", attention_backend "",
//              release "main" or "before_9722", and of pull request 8393, if pull_request_8393 is true:
//              moe_flex_dispatcher_backend "", seq_length null, max_length null
//   areal      fp8 false
//   prime_rl   pad_to_multiple_of 1
//
// One micro-batch of each; "sequences" and the sizes go beside them:
//
//   {"padding": {"policy": "megatron", "seq_length": 4096}, "cp_size": 2, "tp_size": 2, "sequence_parallel": true, …}
//   {"padding": {"policy": "verl", "fp8": true}, "cp_size": 2, "tp_size": 2, "sequence_parallel": true, …}
//   {"padding": {"policy": "slime", "allgather_cp": true}, "cp_size": 4, …}
//   {"padding": {"policy": "miles", "qkv_format": "bshd", "data_pad_size_multiplier": 8}, "cp_size": 2, …}
//   {"padding": {"policy": "skyrl", "remove_microbatch_padding": true}, "tp_size": 4, "sequence_parallel": true, …}
//   {"padding": {"policy": "nemo_rl", "make_sequence_length_divisible_by": 8, "pp": 2}, "cp_size": 2, …}
//   {"padding": {"policy": "ms_swift", "attention_backend": "fused"}, "cp_size": 4, …}
//   {"padding": {"policy": "areal"}, "cp_size": 2, "tp_size": 2, "sequence_parallel": true, …}
//   {"padding": {"policy": "prime_rl", "pad_to_multiple_of": 64}, "cp_size": 2, …}
//
// Plan:
//
//   {
//     "layers": [{"layer": 13, "ordinal": 12, "chunk": 0}, …],
//     "layout": {"format": "THD", "cu_seqlens_padded": [0, 16], "total_rows": 16, "partition": "zigzag_per_document",
//                "cp_size": 2, "tp_size": 2, "sequence_parallel": true},
//     "row_map": {"rows": 4, "replayed": 4, "unrecorded": 0, "pads": 0,
//                 "runs": [{"local_row": 0, "stride": 1, "count": 4, "sequence": 0, "row": 0, "state": "replayed"}]},
//     "slices": [{"sequence": 0, "sample": "math-7/0", "rows": [[0, 4]]}],
//     "rows_to_read": 4, "bytes_to_read": 336,
//     "warnings": []
//   }
//
// Local rows that no run names are pads; rows are half-open ranges. layout: what was planned for, predicted or given.
// warnings: what the policy knows to go wrong in its framework, and where the given layout is not the predicted one.
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
  MicroBatchLayout layout;
  std::vector<std::string> samples;   // Per sequence of layout.
  std::vector<std::string> warnings;  // In words.
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
