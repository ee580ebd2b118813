// Padding of miles: miles/backends/training_utils (get_batch, cp_utils.py, replay_data.py).
#ifndef ROUTING_REPLAY_TRAINER_PADDING_MILES_H_
#define ROUTING_REPLAY_TRAINER_PADDING_MILES_H_

#include "routing_replay/trainer/padding/prediction.h"

namespace routing_replay::trainer {

// Option names of miles in parentheses.
struct MilesPadding {
  bool packed = true;                    // (qkv_format thd) Else a rectangle (bshd).
  int64_t pad_size_multiplier = 128;     // M (--data-pad-size-multiplier)
  bool allgather_cp = false;             // (--allgather-cp)
  std::vector<int64_t> compress_ratios;  // Of the model's attention; rectangle only. 0: none.
};

// Length S of the rectangle before CP: the longest sample to a multiple of max(tp · M, largest ratio · cp · (2 if cp >
// 1)).
int64_t MilesMaxLength(const UnpaddedBatch& batch, const MilesPadding& options);

// Packed: as slime. Rectangle: S to a multiple of 2 · cp for zigzag; allgather_cp: S, rank r keeping S / cp contiguous
// rows. Recorded rows must be T - 1.
absl::StatusOr<PaddingPrediction> PredictMiles(const UnpaddedBatch& batch, const MilesPadding& options);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PADDING_MILES_H_
