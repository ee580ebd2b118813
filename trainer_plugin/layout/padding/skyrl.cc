#include "routing_replay/trainer/padding/skyrl.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "trainer_plugin/layout/multiple.h"
#include "trainer_plugin/layout/padding/batch.h"

namespace routing_replay::trainer {
namespace {

constexpr int64_t kFp8Rows = 16;

absl::StatusOr<PaddingPrediction> PredictStream(const UnpaddedBatch& batch, const SkyRlPadding& options) {
  const int64_t multiple = SkyRlPackedAlignment(batch, options.fp8);
  const auto padded = PadEach(batch, multiple);
  if (!padded.ok()) return padded.status();
  return PaddingPrediction{.policy = "skyrl",
                           .layout = PackedLayout(batch, Partition::kZigzagPerDocument, *padded),
                           .rule = absl::StrCat("each sample to a multiple of ", multiple),
                           .hazards = {}};
}

PaddingPrediction PredictRectangle(const UnpaddedBatch& batch, const SkyRlPadding& options) {
  const int64_t multiple = options.release == SkyRlPadding::Release::kPullRequest1327
                               ? SkyRlPackedAlignment(batch, options.fp8)
                               : SkyRlUnpackedAlignment(batch, options.fp8);
  PaddingPrediction prediction{
      .policy = "skyrl",
      .layout = RectangleLayout(batch, Partition::kZigzagPerSequence, RoundUp(LongestSample(batch), multiple)),
      .rule = absl::StrCat("the longest sample to a multiple of ", multiple),
      .hazards = {}};
  AddBatchMajorHazard(prediction);
  return prediction;
}

}  // namespace

int64_t SkyRlPackedAlignment(const UnpaddedBatch& batch, bool fp8) {
  const int64_t multiple = Times(batch.tp_size, ZigzagUnit(batch.cp_size));
  return fp8 ? LeastCommonMultiple(multiple, Times(kFp8Rows, batch.cp_size)) : multiple;
}

int64_t SkyRlUnpackedAlignment(const UnpaddedBatch& batch, bool fp8) {
  return fp8 ? LeastCommonMultiple(batch.tp_size, kFp8Rows) : batch.tp_size;
}

bool SkyRlFp8Enabled(absl::string_view value) {
  static constexpr absl::string_view kOff[] = {"", "none", "null", "no", "false", "0"};
  const std::string lower = absl::AsciiStrToLower(value);
  return std::find(std::begin(kOff), std::end(kOff), lower) == std::end(kOff);
}

absl::StatusOr<PaddingPrediction> PredictSkyRl(const UnpaddedBatch& batch, const SkyRlPadding& options) {
  if (absl::Status status = CheckBatch(batch, "SkyRL", RecordedRule::kAtMostTokens); !status.ok()) return status;
  auto prediction = options.packed ? PredictStream(batch, options) : PredictRectangle(batch, options);
  if (!prediction.ok()) return prediction;
  AddSliceHazard(batch, *prediction);
  return Examined(*std::move(prediction));
}

}  // namespace routing_replay::trainer
