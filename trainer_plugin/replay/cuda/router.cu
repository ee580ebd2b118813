// The kernels of a router, one warp per row: replay forward and backward, compare. Products and sums are rounded
// separately, as torch's operators and the CPU code do: fused operations would differ from both.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstddef>
#include <cstdint>

#include "routing_replay/trainer/router_config.h"
#include "routing_replay/trainer/row_map.h"
#include "trainer_plugin/replay/cuda/kernels.h"
#include "trainer_plugin/replay/cuda/warp_rows.cuh"
#include "trainer_plugin/replay/router_row.h"

namespace routing_replay::trainer {

template <typename T, typename Math>
struct RowTypes {
  using Element = T;
  using Arithmetic = Math;
};

template <typename T, typename Body>
void WithRounding(Rounding rounding, Body&& body) {
  WithArithmetic<T>(rounding, [&](auto math) { body(RowTypes<T, decltype(math)>()); });
}

// Calls `body` with the types for dtype and rounding. For fp32 both roundings are the same, so there is only one
// kernel.
template <typename Body>
void WithRowTypes(Dtype dtype, Rounding rounding, Body&& body) {
  switch (dtype) {
    case Dtype::kFloat32:
      return body(RowTypes<float, FloatArithmetic>());
    case Dtype::kFloat64:
      return WithRounding<double>(rounding, body);
    case Dtype::kBfloat16:
      return WithRounding<__nv_bfloat16>(rounding, body);
    case Dtype::kFloat16:
      return WithRounding<__half>(rounding, body);
  }
}

// Calls `body` with the types for every dtype and rounding.
template <typename Body>
void ForEachRowTypes(Body&& body) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16, Dtype::kFloat16}) {
    WithRowTypes(dtype, Rounding::kOnce, body);
    if (dtype != Dtype::kFloat32) WithRowTypes(dtype, Rounding::kEachStep, body);
  }
}

// Positions of the counters, in units of 64-bit numbers.
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

namespace {

template <typename Types>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    RouterForwardKernel(RouterConfig config, RouterForwardTensors<typename Types::Element> tensors, int64_t rows,
                        RouterCounters* counters) {
  __shared__ Tile tiles[kWarpsPerBlock];
  __shared__ RouterBlockCounts counts;
  counts.Clear();
  const int64_t row = WarpIndex();
  if (row < rows) {
    const DeviceWarp warp;
    const WarpLanes<DeviceWarp> lanes(warp, tiles[threadIdx.x / kWarpSize].bytes);
    const SlotCounts slots = ForwardRow<typename Types::Arithmetic>(lanes, config, tensors, row);
    if (warp.lane() == 0) counts.Add(CountOf(tensors.states[row]), 1);
    counts.Add(kClampedIds, slots.clamped_ids);
    counts.Add(kZeroProbabilities, slots.zero_probabilities);
  }
  counts.AddTo(counters);
}

}  // namespace

cudaError_t LoadRouterForward() {
  cudaError_t error = cudaSuccess;
  ForEachRowTypes([&](auto types) {
    if (error == cudaSuccess) error = LoadKernels(RouterForwardKernel<decltype(types)>);
  });
  return error;
}

cudaError_t RunRouterForward(Dtype dtype, const RouterConfig& config, const RouterForwardTensors<void>& tensors,
                             int64_t rows, RouterCounters* counters, cudaStream_t stream) {
  WithRowTypes(dtype, config.rounding, [&](auto types) {
    using Types = decltype(types);
    using T = typename Types::Element;
    const RouterForwardTensors<T> typed{.id_bytes = tensors.id_bytes,
                                        .logits = static_cast<const T*>(tensors.logits),
                                        .indices = tensors.indices,
                                        .states = tensors.states,
                                        .expert_bias = tensors.expert_bias,
                                        .probs = static_cast<T*>(tensors.probs),
                                        .routing_map = tensors.routing_map,
                                        .compact_probs = static_cast<T*>(tensors.compact_probs),
                                        .chosen = tensors.chosen};
    RouterForwardKernel<Types><<<BlocksFor(rows), kBlockThreads, 0, stream>>>(config, typed, rows, counters);
  });
  return cudaGetLastError();
}

namespace {

template <typename Types>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    RouterBackwardKernel(RouterConfig config, RouterBackwardTensors<typename Types::Element> tensors, int64_t rows,
                         RouterCounters* counters) {
  __shared__ Tile tiles[kWarpsPerBlock];
  __shared__ RouterBlockCounts counts;
  counts.Clear();
  const int64_t row = WarpIndex();
  if (row < rows) {
    const DeviceWarp warp;
    const WarpLanes<DeviceWarp> lanes(warp, tiles[threadIdx.x / kWarpSize].bytes);
    const SlotCounts slots = BackwardRow<typename Types::Arithmetic>(lanes, config, tensors, row);
    counts.Add(kClampedIds, slots.clamped_ids);
  }
  counts.AddTo(counters);
}

}  // namespace

cudaError_t LoadRouterBackward() {
  cudaError_t error = cudaSuccess;
  ForEachRowTypes([&](auto types) {
    if (error == cudaSuccess) error = LoadKernels(RouterBackwardKernel<decltype(types)>);
  });
  return error;
}

cudaError_t RunRouterBackward(Dtype dtype, const RouterConfig& config, const RouterBackwardTensors<void>& tensors,
                              int64_t rows, RouterCounters* counters, cudaStream_t stream) {
  WithRowTypes(dtype, config.rounding, [&](auto types) {
    using Types = decltype(types);
    using T = typename Types::Element;
    const RouterBackwardTensors<T> typed{.id_bytes = tensors.id_bytes,
                                         .logits = static_cast<const T*>(tensors.logits),
                                         .chosen = tensors.chosen,
                                         .grad_probs = static_cast<const T*>(tensors.grad_probs),
                                         .grad_logits = static_cast<T*>(tensors.grad_logits)};
    RouterBackwardKernel<Types><<<BlocksFor(rows), kBlockThreads, 0, stream>>>(config, typed, rows, counters);
  });
  return cudaGetLastError();
}

namespace {

inline constexpr int32_t kRows = offsetof(CompareCounters, rows) / sizeof(int64_t);
inline constexpr int32_t kDifferentRows = offsetof(CompareCounters, different_rows) / sizeof(int64_t);
inline constexpr int32_t kDisjointRows = offsetof(CompareCounters, disjoint_rows) / sizeof(int64_t);
inline constexpr int32_t kCommonIds = offsetof(CompareCounters, common_ids) / sizeof(int64_t);

__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    CompareKernel(RouterConfig config, CompareTensors tensors, int64_t rows, CompareCounters* counters) {
  __shared__ Tile tiles[kWarpsPerBlock];
  __shared__ BlockCounts<sizeof(CompareCounters) / sizeof(int64_t)> counts;
  counts.Clear();
  const int64_t row = WarpIndex();
  if (row < rows) {
    const DeviceWarp warp;
    const WarpLanes<DeviceWarp> lanes(warp, tiles[threadIdx.x / kWarpSize].bytes);
    const RowComparison one = CompareRow(lanes, config, tensors, row);
    if (warp.lane() == 0) {
      counts.Add(kRows, one.rows);
      counts.Add(kDifferentRows, one.different_rows);
      counts.Add(kDisjointRows, one.disjoint_rows);
      counts.Add(kCommonIds, one.common_ids);
    }
  }
  counts.AddTo(counters);
}

}  // namespace

cudaError_t LoadCompare() { return LoadKernels(CompareKernel); }

cudaError_t RunCompare(const RouterConfig& config, const CompareTensors& tensors, int64_t rows,
                       CompareCounters* counters, cudaStream_t stream) {
  CompareKernel<<<BlocksFor(rows), kBlockThreads, 0, stream>>>(config, tensors, rows, counters);
  return cudaGetLastError();
}

}  // namespace routing_replay::trainer
