#include "routing_replay/trainer/padding/verl.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/multiple.h"
#include "trainer_plugin/layout/padding/batch.h"

namespace routing_replay::trainer {
namespace {

constexpr int64_t kFp8Rows = 128;   // Local rows of an FP8 GEMM.
constexpr int64_t kFp8Sample = 16;  // Rows of a sample.

absl::Status CheckOptions(const VerlPadding& options) {
  absl::Status status;
  if (options.min_local_rows) status.Update(CheckOption("csa_window_size", *options.min_local_rows));
  if (options.length_bucket) status.Update(CheckOption("pad_to_length_bucket", *options.length_bucket));
  if (options.forced_max_length) status.Update(CheckOption("forced_max_seqlen", *options.forced_max_length));
  if (!options.packed && (options.contiguous || options.length_bucket || options.local_cp_size)) {
    status.Update(
        Invalid("padding", "contiguous cp_layout, pad_to_length_bucket and local_cp_size are of packed samples"));
  }
  if (options.min_local_rows && !options.contiguous) {
    status.Update(Invalid("padding.csa_window_size", "is of the contiguous cp_layout"));
  }
  if (options.packed && options.forced_max_length) {
    status.Update(Invalid("padding.forced_max_seqlen", "is of unpacked samples"));
  }
  return status;
}

// What one sample is padded to a multiple of, without FP8.
int64_t SampleUnit(const UnpaddedBatch& batch, const VerlPadding& options) {
  return Times(batch.tp_size, options.contiguous ? batch.cp_size : ZigzagUnit(batch.cp_size));
}

int64_t StreamRows(int64_t rows, int64_t unit, int32_t cp_size, const VerlPadding& options) {
  const int64_t multiple = options.fp8 ? Times(unit, kFp8Rows) : unit;
  rows = RoundUp(rows, options.length_bucket ? LeastCommonMultiple(multiple, *options.length_bucket) : multiple);
  return options.min_local_rows ? std::max(rows, Times(*options.min_local_rows, cp_size)) : rows;
}

// verl copies the first chunk of a sample from its tokens, padded by the unit without FP8 alone: a sample that ends
// inside the first chunk of a CP rank is narrower than its slot, which raises unless just one row is left to repeat.
void AddNarrowChunks(const std::vector<int64_t>& padded, int64_t unit, PaddingPrediction& prediction) {
  const MicroBatchLayout& layout = prediction.layout;
  for (size_t i = 0; i < padded.size() && layout.cp_size > 1; ++i) {
    const int64_t own = RoundUp(layout.sequences[i].tokens, unit);
    const int64_t half = padded[i] / ZigzagUnit(layout.cp_size);
    if (own >= half * layout.cp_size) continue;
    const bool one_left = own == half * (layout.cp_size - 1) + 1;
    prediction.hazards.push_back(absl::StrCat(
        "sample ", i, " is stretched to ", padded[i], " rows, but its own ", own,
        " rows do not reach the end of the first chunk of every CP rank (", half, " rows each): verl's packing ",
        one_left ? "repeats one row silently" : "raises", "; the layout itself is sound"));
  }
}

std::string RuleOf(int64_t sample, int64_t stream, const VerlPadding& options) {
  std::string rule = absl::StrCat("each sample to a multiple of ", sample);
  if (options.fp8 || options.length_bucket || options.min_local_rows) {
    absl::StrAppend(&rule, ", the last one grows until the stream has ", stream, " rows (", options.fp8 ? "FP8 " : "",
                    options.length_bucket ? "length bucket " : "", options.min_local_rows ? "least local rows " : "",
                    "rule)");
  }
  return rule;
}

absl::StatusOr<PaddingPrediction> PredictStream(const UnpaddedBatch& batch, const VerlPadding& options) {
  const int64_t unit = SampleUnit(batch, options);
  const int64_t sample = options.fp8 ? LeastCommonMultiple(kFp8Sample, unit) : unit;
  auto padded = PadEach(batch, sample);
  if (!padded.ok()) return padded.status();
  StretchLast(*padded, StreamRows(Sum(*padded), unit, batch.cp_size, options));
  PaddingPrediction prediction{.policy = "verl"};
  prediction.layout =
      PackedLayout(batch, options.contiguous ? Partition::kContiguous : Partition::kZigzagPerDocument, *padded);
  prediction.rule = RuleOf(sample, prediction.layout.total_rows, options);
  if (options.fp8 && !options.contiguous) AddNarrowChunks(*padded, unit, prediction);
  return prediction;
}

PaddingPrediction PredictRectangle(const UnpaddedBatch& batch, const VerlPadding& options) {
  int64_t multiple = SampleUnit(batch, options);
  if (options.fp8) {
    const int64_t rows = Times(Times(batch.tp_size, batch.cp_size), kFp8Rows);
    const int64_t length = rows / std::gcd(rows, static_cast<int64_t>(batch.sequences.size()));
    multiple = LeastCommonMultiple(LeastCommonMultiple(kFp8Sample, multiple), length);
  }
  const int64_t longest = options.forced_max_length.value_or(LongestSample(batch));
  PaddingPrediction prediction{.policy = "verl"};
  prediction.layout = RectangleLayout(batch, Partition::kZigzagPerSequence, RoundUp(longest, multiple));
  prediction.rule = absl::StrCat("every sample to ", longest, " rows, that to a multiple of ", multiple);
  prediction.hazards.emplace_back(
      "verl packs replayed routes whatever the model does: routing replay needs use_remove_padding");
  return prediction;
}

}  // namespace

absl::StatusOr<PaddingPrediction> PredictVerl(const UnpaddedBatch& of_trainer, const VerlPadding& options) {
  UnpaddedBatch batch = of_trainer;
  batch.cp_size = options.local_cp_size.value_or(batch.cp_size);
  if (absl::Status status = CheckBatch(batch, "verl", RecordedRule::kTokensOrOneLess); !status.ok()) return status;
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  auto prediction = options.packed ? PredictStream(batch, options) : PredictRectangle(batch, options);
  if (!prediction.ok()) return prediction;
  AddSliceHazard(batch, *prediction);
  return Examined(*std::move(prediction));
}

int64_t VerlReplayedRows(int64_t tokens, int64_t recorded_rows, int64_t response_tokens) {
  return response_tokens > 0 ? std::clamp<int64_t>(tokens - 1, 0, recorded_rows) : 0;
}

}  // namespace routing_replay::trainer
