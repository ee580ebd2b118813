// Padding of NeMo-RL: nemo_rl/models/megatron/data.py.
#ifndef ROUTING_REPLAY_TRAINER_PADDING_NEMO_RL_H_
#define ROUTING_REPLAY_TRAINER_PADDING_NEMO_RL_H_

#include "routing_replay/trainer/padding/prediction.h"

namespace routing_replay::trainer {

enum class Fp8Recipe : uint8_t { kNone = 0, kDelayed = 1, kBlockwise = 2, kMxfp8 = 3 };

struct NemoRlPadding {
  bool packed = true;  // (sequence_packing) Else a rectangle.
  int64_t make_sequence_length_divisible_by = 1;
  Fp8Recipe fp8_recipe = Fp8Recipe::kNone;  // kDelayed stands for every other FP8 recipe.
  bool hybridep = false;
  int32_t pipeline_size = 1;
  // Rows of the longest pack of the batch, over all its micro-batches; the pack's own where 0. Read with pipeline_size
  // > 1.
  int64_t max_packed_length_in_batch = 0;
};

// _get_pack_sequence_parameters_for_megatron.
struct NemoRlMultiples {
  int64_t individual = 1;            // Of each sample.
  int64_t packed = 1;                // Of the pack: divisor · (2 · cp if cp > 1) · (tp under SP).
  std::optional<int64_t> packed_to;  // With a pipeline: the length of every pack.
};
// The divisor is the largest of 128 (blockwise), 32 (mxfp8), 16 (other FP8) and 128 (HybridEP).
// INVALID_ARGUMENT (kShape) unless make_sequence_length_divisible_by is a multiple of (2 · cp if cp > 1) · (tp under
// SP).
absl::StatusOr<NemoRlMultiples> GetNemoRlMultiples(const UnpaddedBatch& batch, const NemoRlPadding& options);

// Packed (_pack_sequences_for_megatron): samples by `individual`; the last sample takes what the pack needs. Rectangle:
// the longest sample by make_sequence_length_divisible_by. At most T recorded rows.
absl::StatusOr<PaddingPrediction> PredictNemoRl(const UnpaddedBatch& batch, const NemoRlPadding& options);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PADDING_NEMO_RL_H_
