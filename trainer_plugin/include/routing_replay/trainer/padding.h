// Padding policies of training frameworks by name, and what a trainer really passed against them.
#ifndef ROUTING_REPLAY_TRAINER_PADDING_H_
#define ROUTING_REPLAY_TRAINER_PADDING_H_

#include <optional>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "routing_replay/trainer/padding/areal.h"
#include "routing_replay/trainer/padding/megatron.h"
#include "routing_replay/trainer/padding/miles.h"
#include "routing_replay/trainer/padding/ms_swift.h"
#include "routing_replay/trainer/padding/nemo_rl.h"
#include "routing_replay/trainer/padding/prediction.h"
#include "routing_replay/trainer/padding/prime_rl.h"
#include "routing_replay/trainer/padding/skyrl.h"
#include "routing_replay/trainer/padding/slime.h"
#include "routing_replay/trainer/padding/verl.h"
#include "routing_replay/trainer/rows.h"

namespace routing_replay::trainer {

using PaddingPolicy = std::variant<MegatronPadding, VerlPadding, SlimePadding, MilesPadding, SkyRlPadding,
                                   NemoRlPadding, MsSwiftPadding, ArealPadding, PrimeRlPadding>;

// Padded lengths, boundaries and total of `batch` under a policy: what the policy's own Predict… says.
absl::StatusOr<PaddingPrediction> PredictPadding(const UnpaddedBatch& batch, const PaddingPolicy& policy);

// The first difference between a prediction and the layout that the trainer passed, in words with both numbers and the
// rule; nothing where they agree. Looks at format, sizes, partition (with cp > 1), each sample's padded rows, the
// padding behind the last sample, and the total, in this order.
std::optional<std::string> FirstDifference(const PaddingPrediction& predicted, const MicroBatchLayout& passed);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PADDING_H_
