#include "routing_replay/trainer/padding/slime.h"

#include <utility>

#include "trainer_plugin/layout/padding/batch.h"
#include "trainer_plugin/layout/padding/slime_stream.h"

namespace routing_replay::trainer {

absl::StatusOr<PaddingPrediction> PredictSlime(const UnpaddedBatch& batch, const SlimePadding& options) {
  if (absl::Status status = CheckBatch(batch, "slime", RecordedRule::kTokensLessOne); !status.ok()) return status;
  auto prediction = PredictSlimeStream(batch, options);
  if (!prediction.ok()) return prediction;
  prediction->policy = "slime";
  return Examined(*std::move(prediction));
}

}  // namespace routing_replay::trainer
