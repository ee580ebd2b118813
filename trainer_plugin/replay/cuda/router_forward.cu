// Router replay, forward: one warp per row.
#include "trainer_plugin/replay/cuda/dispatch.cuh"
#include "trainer_plugin/replay/cuda/kernels.h"
#include "trainer_plugin/replay/cuda/router_counts.cuh"

namespace routing_replay::trainer {
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

}  // namespace routing_replay::trainer
