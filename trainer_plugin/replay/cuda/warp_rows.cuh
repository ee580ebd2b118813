// What CUDA kernels share that process each row with one warp: the warp's functions, the grid, tiles, and counters.
#ifndef TRAINER_PLUGIN_REPLAY_CUDA_WARP_ROWS_CUH_
#define TRAINER_PLUGIN_REPLAY_CUDA_WARP_ROWS_CUH_

#include <cstdint>

#include "trainer_plugin/replay/warp_rows.h"

namespace routing_replay::trainer {

// The Warp of warp_rows.h on a GPU.

// All 32 lanes must take part in every call. The functions are never called on the host, where they only have to
// compile.
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

// The grid, the tiles in shared memory, and the counters of a kernel that processes each row with one warp.

inline constexpr int32_t kWarpsPerBlock = 8;
inline constexpr int32_t kBlockThreads = kWarpsPerBlock * kWarpSize;
// Minimum number of resident blocks per multiprocessor, which allows 64 registers per thread. Without this, the
// compiler would aim at more blocks and spill registers.
inline constexpr int32_t kBlocksPerProcessor = 4;

inline uint32_t BlocksFor(int64_t warps) {
  return static_cast<uint32_t>((warps + kWarpsPerBlock - 1) / kWarpsPerBlock);
}

// Loads the kernels on the current device now, because a first launch inside a graph capture must not load them.
template <typename... Kernels>
cudaError_t LoadKernels(Kernels*... kernels) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaSuccess;
  ((error = error == cudaSuccess ? cudaFuncGetAttributes(&attributes, kernels) : error), ...);
  return error;
}

// Index among all warps of the grid. The same for all lanes of a warp.
__device__ inline int64_t WarpIndex() {
  return static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + static_cast<int64_t>(threadIdx.x / kWarpSize);
}

struct alignas(kTileAlignment) Tile {
  uint8_t bytes[kTileBytes];
};

// Counters in the shared memory of a block. They are added to the counters in device memory once per block, because one
// atomic operation per row would be slow. All threads of the block must call Clear and AddTo.
template <int32_t kCounts>
struct BlockCounts {
  uint32_t counts[kCounts];

  __device__ void Clear() {
    if (threadIdx.x < kCounts) counts[threadIdx.x] = 0;
    __syncthreads();
  }
  __device__ void Add(int32_t which, int32_t count) {
    if (count != 0) atomicAdd(&counts[which], static_cast<uint32_t>(count));
  }
  // `counters`: kCounts 64-bit numbers, or null.
  __device__ void AddTo(void* counters) const {
    __syncthreads();
    if (counters == nullptr || threadIdx.x >= kCounts || counts[threadIdx.x] == 0) return;
    atomicAdd(static_cast<unsigned long long*>(counters) + threadIdx.x, counts[threadIdx.x]);
  }
};

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_CUDA_WARP_ROWS_CUH_
