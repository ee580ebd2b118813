#include "routing_replay/trainer/padding/nemo_rl.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/multiple.h"
#include "trainer_plugin/layout/padding/batch.h"

namespace routing_replay::trainer {
namespace {

constexpr int64_t kHybridEpRows = 128;

int64_t Fp8Rows(Fp8Recipe recipe) {
  switch (recipe) {
    case Fp8Recipe::kNone:
      return 1;
    case Fp8Recipe::kDelayed:
      return 16;
    case Fp8Recipe::kMxfp8:
      return 32;
    case Fp8Recipe::kBlockwise:
      break;
  }
  return 128;
}

// What CP and SP divide.
int64_t RankUnit(const UnpaddedBatch& batch) {
  return Times(ZigzagUnit(batch.cp_size), batch.sequence_parallel ? batch.tp_size : 1);
}

absl::StatusOr<PaddingPrediction> PredictPack(const UnpaddedBatch& batch, const NemoRlPadding& options) {
  const auto multiples = GetNemoRlMultiples(batch, options);
  if (!multiples.ok()) return multiples.status();
  auto padded = PadEach(batch, multiples->individual);
  if (!padded.ok()) return padded.status();
  const int64_t rows = Sum(*padded);
  int64_t total = RoundUp(rows, multiples->packed);
  if (multiples->packed_to) total = RoundUp(std::max(rows, *multiples->packed_to), multiples->packed);
  if (multiples->packed_to && total > *multiples->packed_to && options.max_packed_length_in_batch > 0) {
    return Invalid(Reason::kShape, "padding.max_packed_length_in_batch",
                   absl::StrCat(options.max_packed_length_in_batch, " is below the ", rows, " rows of this pack"));
  }
  StretchLast(*padded, total);
  return PaddingPrediction{
      .policy = "nemo_rl",
      .layout = PackedLayout(batch, Partition::kZigzagPerDocument, *padded),
      .rule = absl::StrCat("each sample to a multiple of ", multiples->individual,
                           ", the last one grows until the pack has ",
                           multiples->packed_to ? absl::StrCat(total, " rows, as every pack of the pipeline")
                                                : absl::StrCat("a multiple of ", multiples->packed, " rows")),
      .hazards = {}};
}

PaddingPrediction PredictRectangle(const UnpaddedBatch& batch, const NemoRlPadding& options) {
  const int64_t multiple = options.make_sequence_length_divisible_by;
  return {.policy = "nemo_rl",
          .layout = RectangleLayout(batch, Partition::kZigzagPerSequence, RoundUp(LongestSample(batch), multiple)),
          .rule = absl::StrCat("the longest sample to a multiple of ", multiple),
          .hazards = {}};
}

}  // namespace

absl::StatusOr<NemoRlMultiples> GetNemoRlMultiples(const UnpaddedBatch& batch, const NemoRlPadding& options) {
  const int64_t unit = RankUnit(batch);
  if (options.make_sequence_length_divisible_by % unit != 0) {
    return Invalid(Reason::kShape, "padding.make_sequence_length_divisible_by",
                   absl::StrCat(options.make_sequence_length_divisible_by, " is not a multiple of ", unit,
                                ", what cp_size = ", batch.cp_size, " and tp_size = ", batch.tp_size, " divide"));
  }
  NemoRlMultiples multiples{.individual = options.make_sequence_length_divisible_by};
  const int64_t divisor = std::max(Fp8Rows(options.fp8_recipe), options.hybridep ? kHybridEpRows : 1);
  if (divisor > 1) multiples.packed = Times(divisor, unit);
  if (options.pipeline_size > 1) {
    int64_t longest = options.max_packed_length_in_batch;
    if (longest == 0) {
      const auto padded = PadEach(batch, multiples.individual);
      if (!padded.ok()) return padded.status();
      longest = Sum(*padded);
    }
    multiples.packed_to = RoundUp(longest, multiples.packed);
  }
  return multiples;
}

absl::StatusOr<PaddingPrediction> PredictNemoRl(const UnpaddedBatch& batch, const NemoRlPadding& options) {
  if (absl::Status status = CheckBatch(batch, "NeMo-RL", RecordedRule::kAtMostTokens); !status.ok()) return status;
  absl::Status status = CheckOption("make_sequence_length_divisible_by", options.make_sequence_length_divisible_by);
  status.Update(CheckOption("pp", options.pipeline_size));
  if (options.max_packed_length_in_batch != 0) {
    status.Update(CheckOption("max_packed_length_in_batch", options.max_packed_length_in_batch));
  }
  if (!status.ok()) return status;
  auto prediction = options.packed ? PredictPack(batch, options) : PredictRectangle(batch, options);
  if (!prediction.ok()) return prediction;
  return Examined(*std::move(prediction));
}

}  // namespace routing_replay::trainer
