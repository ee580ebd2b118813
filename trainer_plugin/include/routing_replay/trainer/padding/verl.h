// Padding of verl (Megatron backend): verl/models/mcore/util.py and verl/utils/megatron/router_replay_utils.py.
#ifndef ROUTING_REPLAY_TRAINER_PADDING_VERL_H_
#define ROUTING_REPLAY_TRAINER_PADDING_VERL_H_

#include "routing_replay/trainer/padding/prediction.h"

namespace routing_replay::trainer {

// Option names of verl in parentheses.
struct VerlPadding {
  bool packed = true;                     // (use_remove_padding) THD, else a rectangle.
  bool contiguous = false;                // (cp_layout) Else zigzag. Packed only.
  bool fp8 = false;                       // (fp8 recipe e4m3 or hybrid)
  std::optional<int64_t> min_local_rows;  // (csa_window_size) With `contiguous`: rows that each CP rank has at least.
  std::optional<int64_t> length_bucket;   // (pad_to_length_bucket) Packed only.
  std::optional<int64_t> forced_max_length;  // (forced_max_seqlen) Rectangle only.
  std::optional<int32_t> local_cp_size;      // Dynamic CP: the CP size of this micro-batch.
};

// With a = tp · cp · (2 if zigzag and cp > 1), the last sample taking what the stream needs:
//   packed (preprocess_thd_engine, preprocess_packed_seqs): each sample to a multiple of a, with FP8 of lcm(16, a); the
//     stream to a multiple of a · 128 with FP8, of the bucket, and to cp · min_local_rows;
//   rectangle (preprocess_bshd_engine): the longest sample to a multiple of a; with FP8 to one of lcm(16, a) such that
//     B · length is a multiple of tp · cp · 128.
// Recorded rows must be T or T - 1.
absl::StatusOr<PaddingPrediction> PredictVerl(const UnpaddedBatch& batch, const VerlPadding& options);

// Rows of a sequence that verl's R3 replays (build_r3_replay_mask): the last token never, and none where the response
// is empty. What SequenceShape::recorded_rows is set to for the same choice.
int64_t VerlReplayedRows(int64_t tokens, int64_t recorded_rows, int64_t response_tokens);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PADDING_VERL_H_
