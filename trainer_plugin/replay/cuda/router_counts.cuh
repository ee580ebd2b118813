// RouterCounters as a block counts them.
#ifndef TRAINER_PLUGIN_REPLAY_CUDA_ROUTER_COUNTS_CUH_
#define TRAINER_PLUGIN_REPLAY_CUDA_ROUTER_COUNTS_CUH_

#include <cstddef>

#include "routing_replay/trainer/router_counters.h"
#include "routing_replay/trainer/row_map.h"
#include "trainer_plugin/replay/cuda/warp_rows.cuh"
#include "trainer_plugin/replay/router_row.h"

namespace routing_replay::trainer {

// Places of the members, in 64-bit numbers.
inline constexpr int32_t kReplayedRows = offsetof(RouterCounters, replayed_rows) / sizeof(int64_t);
inline constexpr int32_t kLiveRows = offsetof(RouterCounters, live_rows) / sizeof(int64_t);
inline constexpr int32_t kPadRows = offsetof(RouterCounters, pad_rows) / sizeof(int64_t);
inline constexpr int32_t kClampedIds = offsetof(RouterCounters, clamped_ids) / sizeof(int64_t);
inline constexpr int32_t kZeroProbabilities = offsetof(RouterCounters, zero_probabilities) / sizeof(int64_t);

using RouterBlockCounts = BlockCounts<sizeof(RouterCounters) / sizeof(int64_t)>;

__device__ inline int32_t CountOf(RowState state) {
  if (ChoosesLive(state)) return kLiveRows;
  return state == RowState::kPad ? kPadRows : kReplayedRows;
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_CUDA_ROUTER_COUNTS_CUH_
