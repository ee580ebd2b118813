#include "routing_replay/trainer/padding/miles.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer_plugin/layout/multiple.h"
#include "trainer_plugin/layout/padding/batch.h"
#include "trainer_plugin/layout/padding/slime_stream.h"

namespace routing_replay::trainer {
namespace {

int64_t RectangleMultiple(const UnpaddedBatch& batch, const MilesPadding& options) {
  int64_t multiple = Times(batch.tp_size, options.pad_size_multiplier);
  for (const int64_t ratio : options.compress_ratios) {
    if (ratio > 0) multiple = std::max(multiple, Times(ratio, ZigzagUnit(batch.cp_size)));
  }
  return multiple;
}

absl::Status CheckOptions(const MilesPadding& options) {
  absl::Status status = CheckOption("data_pad_size_multiplier", options.pad_size_multiplier);
  for (const int64_t ratio : options.compress_ratios) {
    if (ratio != 0) status.Update(CheckOption("compress_ratios", ratio));
  }
  return status;
}

absl::StatusOr<PaddingPrediction> PredictStream(const UnpaddedBatch& batch, const MilesPadding& options) {
  auto prediction = PredictSlimeStream(
      batch, {.pad_size_multiplier = options.pad_size_multiplier, .allgather_cp = options.allgather_cp});
  if (prediction.ok()) prediction->policy = "miles";
  return prediction;
}

PaddingPrediction PredictRectangle(const UnpaddedBatch& batch, const MilesPadding& options) {
  const int64_t sample = options.allgather_cp ? 1 : ZigzagUnit(batch.cp_size);
  PaddingPrediction prediction{.policy = "miles"};
  prediction.layout =
      RectangleLayout(batch, options.allgather_cp ? Partition::kContiguousPerSequence : Partition::kZigzagPerSequence,
                      RoundUp(MilesMaxLength(batch, options), sample));
  prediction.rule =
      absl::StrCat("the longest sample to a multiple of ", RectangleMultiple(batch, options), ", then of ", sample);
  AddBatchMajorHazard(prediction);
  return prediction;
}

}  // namespace

int64_t MilesMaxLength(const UnpaddedBatch& batch, const MilesPadding& options) {
  return RoundUp(LongestSample(batch), RectangleMultiple(batch, options));
}

absl::StatusOr<PaddingPrediction> PredictMiles(const UnpaddedBatch& batch, const MilesPadding& options) {
  if (absl::Status status = CheckBatch(batch, "miles", RecordedRule::kTokensLessOne); !status.ok()) return status;
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  auto prediction = options.packed ? PredictStream(batch, options) : PredictRectangle(batch, options);
  if (!prediction.ok()) return prediction;
  return Examined(*std::move(prediction));
}

}  // namespace routing_replay::trainer
