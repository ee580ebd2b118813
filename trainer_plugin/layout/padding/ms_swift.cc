#include "routing_replay/trainer/padding/ms_swift.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/multiple.h"
#include "trainer_plugin/layout/padding/batch.h"

namespace routing_replay::trainer {
namespace {

using Multiple = std::optional<int64_t>;

constexpr int64_t kFusedAttentionRows = 64;

Multiple ParallelMultiple(const UnpaddedBatch& batch) {
  Multiple multiple;
  if (batch.tp_size > 1 && batch.sequence_parallel) multiple = batch.tp_size;
  if (batch.cp_size > 1) multiple = Times(multiple.value_or(1), batch.cp_size);
  return multiple;
}

Multiple LowPrecisionMultiple(Multiple multiple, const MsSwiftPadding& options) {
  const bool older = options.release == MsSwiftPadding::Release::kBefore9722;
  const int64_t so_far = multiple.value_or(1);
  if (options.fp8_recipe == "blockwise") return Times(so_far, 128);
  if (options.fp8_recipe == "mxfp8" && !older) return Times(so_far, 32);
  if (options.fp8_format.empty() && (older || options.fp4_format.empty())) return multiple;
  return older ? std::max<int64_t>(Times(so_far, 8), 16) : Times(so_far, 16);
}

absl::Status CheckOptions(const MsSwiftPadding& options) {
  absl::Status status;
  if (options.seq_length) status.Update(CheckOption("seq_length", *options.seq_length));
  if (options.max_length) status.Update(CheckOption("max_length", *options.max_length));
  return status;
}

absl::StatusOr<PaddingPrediction> PredictStream(const UnpaddedBatch& batch, int64_t multiple) {
  const int64_t unit = ZigzagUnit(batch.cp_size);
  const auto padded = PadEach(batch, unit);
  if (!padded.ok()) return padded.status();
  const int64_t rows = Sum(*padded);
  const int64_t total = RoundUp(rows, multiple);
  if (total > kMaxStreamRows) {
    return Invalid("padding", absl::StrCat("a multiple of ", multiple, " rows is above ", kMaxStreamRows));
  }
  if ((total - rows) % unit != 0) {
    return Invalid(
        Reason::kShape, "padding",
        absl::StrCat("get_padding_to gives ", multiple, ", no multiple of 2 x cp_size = ", unit, ": cu_seqlens end at ",
                     rows + (total - rows) / unit * unit, ", the stream has ", total, " rows"));
  }
  return PaddingPrediction{.policy = "ms_swift",
                           .layout = PackedLayout(batch, Partition::kZigzagPerDocument, *padded,
                                                  std::vector<int64_t>((total - rows) / unit, unit)),
                           .rule = absl::StrCat("each sample to a multiple of ", unit, ", then documents of ", unit,
                                                unit == 1 ? " row" : " rows", " up to a multiple of ", multiple),
                           .hazards = {}};
}

PaddingPrediction PredictRectangle(const UnpaddedBatch& batch, int64_t multiple) {
  const int64_t unit = ZigzagUnit(batch.cp_size);
  PaddingPrediction prediction{
      .policy = "ms_swift",
      .layout =
          RectangleLayout(batch, Partition::kZigzagPerSequence, RoundUp(RoundUp(LongestSample(batch), multiple), unit)),
      .rule = absl::StrCat("the longest sample to a multiple of ", multiple, ", then of ", unit),
      .hazards = {}};
  AddBatchMajorHazard(prediction);
  return prediction;
}

// Whether every batch padded by `multiple` can be cut, not only this one: samples are multiples of 2C rows already.
bool AlwaysFits(const UnpaddedBatch& batch, const MsSwiftPadding& options, int64_t multiple) {
  const int64_t unit = ZigzagUnit(batch.cp_size);
  const bool nested = multiple % unit == 0 || unit % multiple == 0;
  if (!nested && options.padding_free) return false;
  const int64_t rows = nested ? std::max(multiple, unit) : unit;
  return !batch.sequence_parallel || rows % Times(batch.tp_size, batch.cp_size) == 0;
}

void AddHazards(const UnpaddedBatch& batch, const MsSwiftPadding& options, int64_t multiple,
                PaddingPrediction& prediction) {
  if (!AlwaysFits(batch, options, multiple)) {
    prediction.hazards.push_back(
        absl::StrCat("get_padding_to gives ", multiple, ", which not every batch can be cut by over cp_size ",
                     batch.cp_size, " and tp_size ", batch.tp_size, ": these lengths fit by chance, if at all"));
  }
  if (options.hybridep && (options.seq_length || options.max_length)) {
    prediction.hazards.push_back(absl::StrCat(
        "hybridep pads the whole model input to multiples of ", multiple,
        " rows and sets aside what CP, SP and FP8 ask for; attention, experts and replay rows pay for the padding"));
  }
}

}  // namespace

std::optional<int64_t> MsSwiftPaddingTo(const UnpaddedBatch& batch, const MsSwiftPadding& options) {
  const Multiple parallel = ParallelMultiple(batch);
  Multiple multiple = LowPrecisionMultiple(parallel, options);
  if (options.fused_attention) {
    multiple = std::max(multiple.value_or(1), Times(parallel.value_or(1), kFusedAttentionRows));
  }
  if (!options.hybridep) return multiple;
  if (options.seq_length) return options.seq_length;
  return options.max_length ? options.max_length : multiple;
}

bool MsSwiftPaddingDivides(const UnpaddedBatch& batch, const MsSwiftPadding& options) {
  return MsSwiftPaddingTo(batch, options).value_or(1) % Times(batch.tp_size, ZigzagUnit(batch.cp_size)) == 0;
}

absl::StatusOr<PaddingPrediction> PredictMsSwift(const UnpaddedBatch& batch, const MsSwiftPadding& options) {
  if (absl::Status status = CheckBatch(batch, "ms-swift", RecordedRule::kTokensOrOneLess); !status.ok()) return status;
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  const int64_t multiple = MsSwiftPaddingTo(batch, options).value_or(1);
  auto prediction = options.padding_free ? PredictStream(batch, multiple) : PredictRectangle(batch, multiple);
  if (!prediction.ok()) return prediction;
  AddHazards(batch, options, multiple, *prediction);
  AddSliceHazard(batch, *prediction);
  return Examined(*std::move(prediction));
}

}  // namespace routing_replay::trainer
