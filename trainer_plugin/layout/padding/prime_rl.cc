#include "routing_replay/trainer/padding/prime_rl.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer_plugin/layout/multiple.h"
#include "trainer_plugin/layout/padding/batch.h"

namespace routing_replay::trainer {

absl::StatusOr<PaddingPrediction> PredictPrimeRl(const UnpaddedBatch& batch, const PrimeRlPadding& options) {
  if (absl::Status status = CheckBatch(batch, "prime-rl", RecordedRule::kAtMostTokens); !status.ok()) return status;
  if (absl::Status status = CheckOption("pad_to_multiple_of", options.pad_to_multiple_of); !status.ok()) return status;
  auto padded = PadEach(batch, 1);
  if (!padded.ok()) return padded.status();
  StretchLast(*padded, RoundUp(Sum(*padded), options.pad_to_multiple_of));
  return Examined({.policy = "prime_rl",
                   .layout = PackedLayout(batch, Partition::kContiguous, *padded),
                   .rule = absl::StrCat("the last sample grows until the stream is a multiple of ",
                                        options.pad_to_multiple_of, " rows"),
                   .hazards = {}});
}

}  // namespace routing_replay::trainer
