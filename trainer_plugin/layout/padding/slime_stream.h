// The packed stream of slime, which miles shares.
#ifndef TRAINER_PLUGIN_LAYOUT_PADDING_SLIME_STREAM_H_
#define TRAINER_PLUGIN_LAYOUT_PADDING_SLIME_STREAM_H_

#include "routing_replay/trainer/padding/slime.h"

namespace routing_replay::trainer {

// As PredictSlime, but for the name of the policy and the checks of the batch, which must hold.
absl::StatusOr<PaddingPrediction> PredictSlimeStream(const UnpaddedBatch& batch, const SlimePadding& options);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_PADDING_SLIME_STREAM_H_
