#include "routing_replay/trainer/padding/megatron.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/multiple.h"
#include "trainer_plugin/layout/padding/batch.h"

namespace routing_replay::trainer {
namespace {

// `rows`, or the sequence length that holds them.
absl::StatusOr<int64_t> SequenceRows(int64_t rows, const MegatronPadding& options) {
  if (!options.sequence_length) return rows;
  if (*options.sequence_length >= rows) return *options.sequence_length;
  return Invalid(Reason::kShape, "padding.seq_length",
                 absl::StrCat(*options.sequence_length, " is below ", rows, " padded rows"));
}

}  // namespace

Partition MegatronPartition(bool cu_seqlens, bool per_sequence_balancing, bool hybrid_cp) {
  const bool per_document = cu_seqlens && !per_sequence_balancing && !hybrid_cp;
  return per_document ? Partition::kZigzagPerDocument : Partition::kZigzagPerSequence;
}

absl::StatusOr<PaddingPrediction> PredictMegatron(const UnpaddedBatch& batch, const MegatronPadding& options) {
  if (absl::Status status = CheckBatch(batch, "Megatron", RecordedRule::kAtMostTokens); !status.ok()) return status;
  if (options.sequence_length) {
    if (absl::Status status = CheckOption("seq_length", *options.sequence_length); !status.ok()) return status;
  }
  if (options.dp_cp_size) {
    if (absl::Status status = CheckOption("dp_cp_size", *options.dp_cp_size); !status.ok()) return status;
  }
  if (options.hybrid_cp && batch.sequences.size() != 1) {
    return Invalid(Reason::kShape, "padding.hybrid_context_parallel",
                   absl::StrCat("each sample is cut over a group of its own, a micro-batch of ", batch.sequences.size(),
                                " has none"));
  }
  const Partition partition = MegatronPartition(options.packed, options.per_sequence_balancing, options.hybrid_cp);
  const int64_t group = options.hybrid_cp ? options.dp_cp_size.value_or(batch.cp_size) : batch.cp_size;
  const int64_t unit = Times(ZigzagUnit(group), batch.sequence_parallel ? batch.tp_size : 1);
  PaddingPrediction prediction{.policy = "megatron"};
  if (!options.packed) {
    const auto length = SequenceRows(RoundUp(LongestSample(batch), unit), options);
    if (!length.ok()) return length.status();
    prediction.layout = RectangleLayout(batch, partition, *length);
    prediction.rule = absl::StrCat("the longest sample to a multiple of ", unit);
    return Examined(std::move(prediction));
  }
  const bool documents = partition == Partition::kZigzagPerDocument || options.hybrid_cp;
  auto padded = PadEach(batch, documents ? unit : 1);
  if (!padded.ok()) return padded.status();
  const auto total = SequenceRows(RoundUp(Sum(*padded), unit), options);
  if (!total.ok()) return total.status();
  StretchLast(*padded, *total);
  prediction.layout = PackedLayout(batch, partition, *padded);
  prediction.rule = absl::StrCat(documents ? "each document" : "the stream", " to a multiple of ", unit,
                                 ", the last document to the end of ", *total, " rows");
  return Examined(std::move(prediction));
}

}  // namespace routing_replay::trainer
