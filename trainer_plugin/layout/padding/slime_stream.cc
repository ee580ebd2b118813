#include "trainer_plugin/layout/padding/slime_stream.h"

#include "absl/strings/str_cat.h"
#include "trainer_plugin/layout/multiple.h"
#include "trainer_plugin/layout/padding/batch.h"

namespace routing_replay::trainer {

absl::StatusOr<PaddingPrediction> PredictSlimeStream(const UnpaddedBatch& batch, const SlimePadding& options) {
  if (absl::Status status = CheckOption("data_pad_size_multiplier", options.pad_size_multiplier); !status.ok()) {
    return status;
  }
  const bool contiguous = options.allgather_cp && batch.cp_size > 1;
  const int64_t sample = contiguous ? 1 : ZigzagUnit(batch.cp_size);
  const int64_t stream = Times(Times(batch.tp_size, options.pad_size_multiplier), batch.cp_size);
  const auto padded = PadEach(batch, sample);
  if (!padded.ok()) return padded.status();
  const int64_t rows = Sum(*padded);
  const int64_t missing = RoundUp(rows, stream) - rows;
  PaddingPrediction prediction;
  prediction.layout = PackedLayout(batch, contiguous ? Partition::kContiguous : Partition::kZigzagPerDocument, *padded,
                                   missing > 0 ? std::vector<int64_t>{missing} : std::vector<int64_t>{});
  prediction.rule =
      absl::StrCat("each sample to a multiple of ", sample, ", the stream to one of ", stream, " (cp_size ",
                   batch.cp_size, " x tp_size ", batch.tp_size, " x data_pad_size_multiplier ",
                   options.pad_size_multiplier, ") by a document of its own");
  return prediction;
}

}  // namespace routing_replay::trainer
