// Padding of prime-rl: src/prime_rl/trainer/batch.py pad_micro_batch, shard_for_cp.
#ifndef ROUTING_REPLAY_TRAINER_PADDING_PRIME_RL_H_
#define ROUTING_REPLAY_TRAINER_PADDING_PRIME_RL_H_

#include "routing_replay/trainer/padding/prediction.h"

namespace routing_replay::trainer {

struct PrimeRlPadding {
  int64_t pad_to_multiple_of = 1;
};

// Packed, without padding per sample; the last sample grows until the stream is a multiple of pad_to_multiple_of. Equal
// contiguous chunks, which cp must divide. At most T recorded rows.
absl::StatusOr<PaddingPrediction> PredictPrimeRl(const UnpaddedBatch& batch, const PrimeRlPadding& options);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PADDING_PRIME_RL_H_
