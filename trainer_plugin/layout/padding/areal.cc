#include "routing_replay/trainer/padding/areal.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer_plugin/layout/multiple.h"
#include "trainer_plugin/layout/padding/batch.h"

namespace routing_replay::trainer {
namespace {

constexpr int64_t kFp8Rows = 16;
constexpr int64_t kStreamRows = 256;

}  // namespace

absl::StatusOr<PaddingPrediction> PredictAreal(const UnpaddedBatch& batch, const ArealPadding& options) {
  if (absl::Status status = CheckBatch(batch, "AReaL", RecordedRule::kTokensLessOne); !status.ok()) return status;
  int64_t sample = Times(batch.tp_size, ZigzagUnit(batch.cp_size));
  if (options.fp8) sample = LeastCommonMultiple(sample, kFp8Rows);
  const int64_t stream = LeastCommonMultiple(sample, kStreamRows);
  const auto padded = PadEach(batch, sample);
  if (!padded.ok()) return padded.status();
  const int64_t missing = RoundUp(Sum(*padded), stream) - Sum(*padded);
  return Examined({.policy = "areal",
                   .layout = PackedLayout(batch, Partition::kZigzagPerDocument, *padded,
                                          missing > 0 ? std::vector<int64_t>{missing} : std::vector<int64_t>{}),
                   .rule = absl::StrCat("each sample to a multiple of ", sample, ", the stream to one of ", stream,
                                        " by a document of its own"),
                   .hazards = {}});
}

}  // namespace routing_replay::trainer
