// Padding of SkyRL: skyrl/backends/skyrl_train/distributed/megatron/token_metadata.py.
#ifndef ROUTING_REPLAY_TRAINER_PADDING_SKYRL_H_
#define ROUTING_REPLAY_TRAINER_PADDING_SKYRL_H_

#include "absl/strings/string_view.h"
#include "routing_replay/trainer/padding/prediction.h"

namespace routing_replay::trainer {

struct SkyRlPadding {
  enum class Release : uint8_t {
    kMain = 0,
    kPullRequest1327 = 1,  // The superseded rectangle: aligned for CP too.
  };
  bool packed = true;  // (remove_microbatch_padding) Else a rectangle.
  bool fp8 = false;
  Release release = Release::kMain;
};

// What a sample's length is padded to a multiple of. get_packed_seq_align_size: a = tp · (2 · cp if cp > 1), with FP8
// lcm(a, 16 · cp). get_unpacked_seq_align_size: tp, with FP8 lcm(tp, 16).
int64_t SkyRlPackedAlignment(const UnpaddedBatch& batch, bool fp8);
int64_t SkyRlUnpackedAlignment(const UnpaddedBatch& batch, bool fp8);

// Whether a value of the `fp8` option turns FP8 on (is_fp8_enabled): not "", none, null, no, false, 0, in any case.
bool SkyRlFp8Enabled(absl::string_view value);

// Samples come in a left-padded rectangle; the attention mask strips that before packing.
absl::StatusOr<PaddingPrediction> PredictSkyRl(const UnpaddedBatch& batch, const SkyRlPadding& options);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PADDING_SKYRL_H_
