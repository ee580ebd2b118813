// Padding of slime: slime/backends/megatron_utils (get_batch, cp_utils.py).
#ifndef ROUTING_REPLAY_TRAINER_PADDING_SLIME_H_
#define ROUTING_REPLAY_TRAINER_PADDING_SLIME_H_

#include "routing_replay/trainer/padding/prediction.h"

namespace routing_replay::trainer {

// Option names of slime in parentheses.
struct SlimePadding {
  int64_t pad_size_multiplier = 128;  // M (--data-pad-size-multiplier)
  bool allgather_cp = false;          // (--allgather-cp) The stream is cut into equal contiguous chunks.
};

// Packed. Zigzag: each sample to a multiple of 2 · cp (not at all for cp = 1), the rows of a rank to one of tp · M.
// allgather_cp: no padding per sample, the stream to a multiple of cp · tp · M. What the stream needs is a document of
// its own. Recorded rows must be T - 1.
absl::StatusOr<PaddingPrediction> PredictSlime(const UnpaddedBatch& batch, const SlimePadding& options);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PADDING_SLIME_H_
