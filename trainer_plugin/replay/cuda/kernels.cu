// The kernels: realign with one warp per unit of a packed plan; router forward and backward with one warp per row.
// Products and sums are rounded separately, as torch's operators and the CPU code do: fused operations would differ
// from both.
#include "trainer_plugin/replay/cuda/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstddef>
#include <cstdint>

#include "routing_replay/trainer/router.h"
#include "routing_replay/trainer/router_config.h"
#include "routing_replay/trainer/row_map.h"
#include "trainer_plugin/replay/packed_realign.h"
#include "trainer_plugin/replay/router_row.h"
#include "trainer_plugin/replay/warp_rows.h"

namespace routing_replay::trainer {
namespace {

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

constexpr int32_t kWarpsPerBlock = 8;
constexpr int32_t kBlockThreads = kWarpsPerBlock * kWarpSize;
// Minimum number of resident blocks per multiprocessor, which allows 64 registers per thread. Without this, the
// compiler would aim at more blocks and spill registers.
constexpr int32_t kBlocksPerProcessor = 4;

uint32_t BlocksFor(int64_t warps) { return static_cast<uint32_t>((warps + kWarpsPerBlock - 1) / kWarpsPerBlock); }

// Index of this thread's warp among all warps of the grid.
__device__ int64_t WarpIndex() {
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

// Limit for the warps of a realign: further ones would only wait for others to end.
constexpr int64_t kMaxWarps = 1 << 16;
static_assert(kUnitLanes == kWarpSize, "a unit is the work of one warp");

// The grid has about as many warps as the plan is expected to have units; if it has more units, a warp runs several.
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    RealignKernel(const uint8_t* packed, const uint8_t* staging, uint8_t* indices, RowState* states) {
  const int64_t units = NumUnits(*reinterpret_cast<const PackedHeader*>(packed));
  const int32_t lane = static_cast<int32_t>(threadIdx.x % kWarpSize);
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarpsPerBlock;
  for (int64_t unit = WarpIndex(); unit < units; unit += warps) RunUnit(lane, unit, packed, staging, indices, states);
}

template <typename T, typename Math>
struct RowTypes {
  using Element = T;
  using Arithmetic = Math;
};

template <typename T, typename Body>
void WithRounding(Rounding rounding, Body&& body) {
  WithArithmetic<T>(rounding, [&](auto math) { body(RowTypes<T, decltype(math)>()); });
}

// Calls `body` with the types for dtype and rounding; for fp32 both roundings have the same type.
template <typename Body>
void WithRowTypes(Dtype dtype, Rounding rounding, Body&& body) {
  switch (dtype) {
    case Dtype::kFloat32:
      return WithRounding<float>(rounding, body);
    case Dtype::kFloat64:
      return WithRounding<double>(rounding, body);
    case Dtype::kBfloat16:
      return WithRounding<__nv_bfloat16>(rounding, body);
    case Dtype::kFloat16:
      return WithRounding<__half>(rounding, body);
  }
}

// Positions of the counters, in units of 64-bit numbers.
constexpr int32_t kReplayedRows = offsetof(RouterCounters, replayed_rows) / sizeof(int64_t);
constexpr int32_t kLiveRows = offsetof(RouterCounters, live_rows) / sizeof(int64_t);
constexpr int32_t kPadRows = offsetof(RouterCounters, pad_rows) / sizeof(int64_t);
constexpr int32_t kClampedIds = offsetof(RouterCounters, clamped_ids) / sizeof(int64_t);

__device__ int32_t CountOf(RowState state) {
  if (ChoosesLive(state)) return kLiveRows;
  return state == RowState::kPad ? kPadRows : kReplayedRows;
}

// Calls `body(lanes, row, counts)` on the warp of each row, and adds what it counts to `counters`.
template <typename Counters, typename Body>
__device__ void ForEachRow(int64_t rows, Counters* counters, Body&& body) {
  __shared__ Tile tiles[kWarpsPerBlock];
  __shared__ BlockCounts<sizeof(Counters) / sizeof(int64_t)> counts;
  counts.Clear();
  const int64_t row = WarpIndex();
  if (row < rows) {
    const DeviceWarp warp;
    body(WarpLanes<DeviceWarp>(warp, tiles[threadIdx.x / kWarpSize].bytes), row, counts);
  }
  counts.AddTo(counters);
}

template <typename Types>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    RouterForwardKernel(RouterConfig config, RouterForwardTensors<typename Types::Element> tensors, int64_t rows,
                        RouterCounters* counters) {
  ForEachRow(rows, counters, [&](const auto& lanes, int64_t row, auto& counts) {
    counts.Add(kClampedIds, ForwardRow<typename Types::Arithmetic>(lanes, config, tensors, row));
    if (lanes.warp().lane() == 0) counts.Add(CountOf(tensors.states[row]), 1);
  });
}

template <typename Types>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    RouterBackwardKernel(RouterConfig config, RouterBackwardTensors<typename Types::Element> tensors, int64_t rows,
                         RouterCounters* counters) {
  ForEachRow(rows, counters, [&](const auto& lanes, int64_t row, auto& counts) {
    counts.Add(kClampedIds, BackwardRow<typename Types::Arithmetic>(lanes, config, tensors, row));
  });
}

}  // namespace

cudaError_t LoadKernels() {
  cudaError_t error = cudaSuccess;
  const auto load = [&](auto* kernel) {
    cudaFuncAttributes attributes;
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  };
  load(RealignKernel);
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16, Dtype::kFloat16}) {
    for (const Rounding rounding : {Rounding::kOnce, Rounding::kEachStep}) {
      WithRowTypes(dtype, rounding, [&](auto types) {
        load(RouterForwardKernel<decltype(types)>);
        load(RouterBackwardKernel<decltype(types)>);
      });
    }
  }
  return error;
}

cudaError_t RunRealign(const CudaRealign& call, cudaStream_t stream) {
  const int64_t warps = call.units < 1 ? 1 : call.units < kMaxWarps ? call.units : kMaxWarps;
  RealignKernel<<<BlocksFor(warps), kBlockThreads, 0, stream>>>(call.packed_plan, call.staging, call.indices,
                                                                call.states);
  return cudaGetLastError();
}

cudaError_t RunRouterForward(const RouterConfig& config, const CudaRouterForward& call, cudaStream_t stream) {
  WithRowTypes(call.dtype, config.rounding, [&](auto types) {
    using T = typename decltype(types)::Element;
    const RouterForwardTensors<T> tensors{.id_bytes = IdBytes(config),
                                          .logits = static_cast<const T*>(call.logits),
                                          .indices = call.indices,
                                          .states = call.states,
                                          .expert_bias = call.expert_bias,
                                          .probs = static_cast<T*>(call.probs),
                                          .routing_map = call.routing_map,
                                          .chosen = call.chosen};
    RouterForwardKernel<decltype(types)>
        <<<BlocksFor(call.rows), kBlockThreads, 0, stream>>>(config, tensors, call.rows, call.counters);
  });
  return cudaGetLastError();
}

cudaError_t RunRouterBackward(const RouterConfig& config, const CudaRouterBackward& call, cudaStream_t stream) {
  WithRowTypes(call.dtype, config.rounding, [&](auto types) {
    using T = typename decltype(types)::Element;
    const RouterBackwardTensors<T> tensors{.id_bytes = IdBytes(config),
                                           .logits = static_cast<const T*>(call.logits),
                                           .chosen = call.chosen,
                                           .grad_probs = static_cast<const T*>(call.grad_probs),
                                           .grad_logits = static_cast<T*>(call.grad_logits)};
    RouterBackwardKernel<decltype(types)>
        <<<BlocksFor(call.rows), kBlockThreads, 0, stream>>>(config, tensors, call.rows, call.counters);
  });
  return cudaGetLastError();
}

}  // namespace routing_replay::trainer
