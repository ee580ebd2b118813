#include "routing_replay/trainer/padding.h"

namespace routing_replay::trainer {
namespace {

// One per policy: what PredictPadding calls.
struct Predict {
  const UnpaddedBatch& batch;
  auto operator()(const MegatronPadding& options) const { return PredictMegatron(batch, options); }
  auto operator()(const VerlPadding& options) const { return PredictVerl(batch, options); }
  auto operator()(const SlimePadding& options) const { return PredictSlime(batch, options); }
  auto operator()(const MilesPadding& options) const { return PredictMiles(batch, options); }
  auto operator()(const SkyRlPadding& options) const { return PredictSkyRl(batch, options); }
  auto operator()(const NemoRlPadding& options) const { return PredictNemoRl(batch, options); }
  auto operator()(const MsSwiftPadding& options) const { return PredictMsSwift(batch, options); }
  auto operator()(const ArealPadding& options) const { return PredictAreal(batch, options); }
  auto operator()(const PrimeRlPadding& options) const { return PredictPrimeRl(batch, options); }
};

}  // namespace

absl::StatusOr<PaddingPrediction> PredictPadding(const UnpaddedBatch& batch, const PaddingPolicy& policy) {
  return std::visit(Predict{batch}, policy);
}

}  // namespace routing_replay::trainer
