// Record the live choice: one warp per row.
#include "trainer_plugin/replay/cuda/dispatch.cuh"
#include "trainer_plugin/replay/cuda/kernels.h"
#include "trainer_plugin/replay/cuda/warp_rows.cuh"

namespace routing_replay::trainer {
namespace {

template <typename Types>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    RecordLiveKernel(RouterConfig config, RecordTensors<typename Types::Element> tensors, int64_t rows) {
  __shared__ Tile tiles[kWarpsPerBlock];
  const int64_t row = WarpIndex();
  if (row >= rows) return;
  const DeviceWarp warp;
  const WarpLanes<DeviceWarp> lanes(warp, tiles[threadIdx.x / kWarpSize].bytes);
  RecordRow<typename Types::Arithmetic>(lanes, config, tensors, row);
}

}  // namespace

cudaError_t RunRecordLive(Dtype dtype, const RouterConfig& config, const RecordTensors<void>& tensors, int64_t rows,
                          cudaStream_t stream) {
  WithRowTypes(dtype, config.rounding, [&](auto types) {
    using Types = decltype(types);
    using T = typename Types::Element;
    const RecordTensors<T> typed{.id_bytes = tensors.id_bytes,
                                 .logits = static_cast<const T*>(tensors.logits),
                                 .expert_bias = tensors.expert_bias,
                                 .indices = tensors.indices};
    RecordLiveKernel<Types><<<BlocksFor(rows), kBlockThreads, 0, stream>>>(config, typed, rows);
  });
  return cudaGetLastError();
}

}  // namespace routing_replay::trainer
