// Router replay, backward: one warp per row.
#include "trainer_plugin/replay/cuda/dispatch.cuh"
#include "trainer_plugin/replay/cuda/kernels.h"
#include "trainer_plugin/replay/cuda/router_counts.cuh"

namespace routing_replay::trainer {
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

}  // namespace routing_replay::trainer
