// Record the live choice: one warp per row.
#include "trainer_plugin/replay/cuda/any_logits.cuh"
#include "trainer_plugin/replay/cuda/kernels.h"
#include "trainer_plugin/replay/cuda/warp_rows.cuh"

namespace routing_replay::trainer {
namespace {

__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    RecordLiveKernel(RouterConfig config, RecordTensors<AnyLogits> tensors, int64_t rows) {
  __shared__ Tile tiles[kWarpsPerBlock];
  const int64_t row = WarpIndex();
  if (row >= rows) return;
  const DeviceWarp warp;
  const WarpLanes<DeviceWarp> lanes(warp, tiles[threadIdx.x / kWarpSize].bytes);
  RecordRow<AnyArithmetic>(lanes, config, tensors, row);
}

}  // namespace

cudaError_t LoadRecordLive() { return LoadKernels(RecordLiveKernel); }

cudaError_t RunRecordLive(Dtype dtype, const RouterConfig& config, const RecordTensors<const void*>& tensors,
                          int64_t rows, cudaStream_t stream) {
  const RecordTensors<AnyLogits> readable{.id_bytes = tensors.id_bytes,
                                          .logits = {tensors.logits, dtype, config.rounding},
                                          .expert_bias = tensors.expert_bias,
                                          .indices = tensors.indices};
  RecordLiveKernel<<<BlocksFor(rows), kBlockThreads, 0, stream>>>(config, readable, rows);
  return cudaGetLastError();
}

}  // namespace routing_replay::trainer
