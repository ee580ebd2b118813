// Padding of ms-swift (Megatron-SWIFT): swift/megatron/utils/utils.py get_padding_to, swift/template/base.py.
#ifndef ROUTING_REPLAY_TRAINER_PADDING_MS_SWIFT_H_
#define ROUTING_REPLAY_TRAINER_PADDING_MS_SWIFT_H_

#include "routing_replay/trainer/padding/prediction.h"

namespace routing_replay::trainer {

// Option names of ms-swift.
struct MsSwiftPadding {
  enum class Release : uint8_t {
    kMain = 0,
    kBefore9722 =
        1,  // Before pull request 9722: an FP8 format multiplies by 8, at least 16; mxfp8 is no case of its own.
  };
  bool padding_free = true;      // THD, else a rectangle.
  std::string fp8_recipe;        // "", "blockwise", "mxfp8", "delayed", …
  std::string fp8_format;        // "", "e4m3", …
  std::string fp4_format;        // "", "e2m1", …
  bool fused_attention = false;  // (attention_backend fused)
  Release release = Release::kMain;
  // The rule of pull request 8393, which was never merged: with moe_flex_dispatcher_backend = hybridep everything is
  // padded to seq_length, else to max_length, whatever the other rules say. deepep changes nothing.
  bool hybridep = false;
  std::optional<int64_t> seq_length;
  std::optional<int64_t> max_length;
};

// get_padding_to: what total rows are padded to a multiple of; nothing where no rule holds. In this order:
//   tp under SP, times cp (not 2 · cp), times 128 (blockwise), 32 (mxfp8) or 16 (any FP8 or FP4 format); fused
//   attention: at least 64 times the product of the first two; then hybridep.
std::optional<int64_t> MsSwiftPaddingTo(const UnpaddedBatch& batch, const MsSwiftPadding& options);

// Whether CP and SP can divide what is padded to MsSwiftPaddingTo alone: it is a multiple of tp · (2 · cp if cp > 1).
bool MsSwiftPaddingDivides(const UnpaddedBatch& batch, const MsSwiftPadding& options);

// Packed: each sample to a multiple of 2 · cp (not at all for cp = 1), then documents of 2 · cp rows (of one row for
// cp = 1) up to a multiple of padding_to. Rectangle: the longest sample to a multiple of padding_to, then of 2 · cp.
// Recorded rows must be T or T - 1. INVALID_ARGUMENT (kShape) where the documents end below the total.
absl::StatusOr<PaddingPrediction> PredictMsSwift(const UnpaddedBatch& batch, const MsSwiftPadding& options);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PADDING_MS_SWIFT_H_
