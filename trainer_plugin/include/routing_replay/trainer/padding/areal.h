// Padding of AReaL: areal/engine/megatron_utils/packed_context_parallel.py.
#ifndef ROUTING_REPLAY_TRAINER_PADDING_AREAL_H_
#define ROUTING_REPLAY_TRAINER_PADDING_AREAL_H_

#include "routing_replay/trainer/padding/prediction.h"

namespace routing_replay::trainer {

struct ArealPadding {
  bool fp8 = false;
};

// Packed. With a = tp · (2 · cp if cp > 1), with FP8 lcm(a, 16): each sample to a multiple of a, the stream to one of
// lcm(a, 256), what it needs being a document of its own. Recorded rows must be T - 1.
absl::StatusOr<PaddingPrediction> PredictAreal(const UnpaddedBatch& batch, const ArealPadding& options);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PADDING_AREAL_H_
