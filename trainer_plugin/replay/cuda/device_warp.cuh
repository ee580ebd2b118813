// The Warp of warp_lanes.h on a GPU.
#ifndef TRAINER_PLUGIN_REPLAY_CUDA_DEVICE_WARP_CUH_
#define TRAINER_PLUGIN_REPLAY_CUDA_DEVICE_WARP_CUH_

#include <cstdint>

#include "trainer_plugin/replay/warp_lanes.h"

namespace routing_replay::trainer {

// All 32 lanes take part in everything. On the host, where these are never called, they do nothing.
struct DeviceWarp {
  static constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

  RR_HOST_DEVICE int32_t lane() const {
#ifdef __CUDA_ARCH__
    return static_cast<int32_t>(threadIdx.x % kWarpSize);
#else
    return 0;
#endif
  }
  RR_HOST_DEVICE void Sync() const {
#ifdef __CUDA_ARCH__
    __syncwarp();
#endif
  }
  template <typename T>
  RR_HOST_DEVICE T Shuffle(T value, int32_t source) const {
#ifdef __CUDA_ARCH__
    return static_cast<T>(__shfl_sync(kAllLanes, value, source));
#else
    return value;
#endif
  }
  template <typename T>
  RR_HOST_DEVICE T ShuffleXor(T value, int32_t mask) const {
#ifdef __CUDA_ARCH__
    return static_cast<T>(__shfl_xor_sync(kAllLanes, value, mask));
#else
    return value;
#endif
  }
};

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_CUDA_DEVICE_WARP_CUH_
