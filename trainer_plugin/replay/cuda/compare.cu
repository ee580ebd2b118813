// Compare the replayed choice with the live one: one warp per row.
#include <cstddef>

#include "trainer_plugin/replay/cuda/any_logits.cuh"
#include "trainer_plugin/replay/cuda/kernels.h"
#include "trainer_plugin/replay/cuda/warp_rows.cuh"

namespace routing_replay::trainer {
namespace {

inline constexpr int32_t kRows = offsetof(CompareCounters, rows) / sizeof(int64_t);
inline constexpr int32_t kDifferentRows = offsetof(CompareCounters, different_rows) / sizeof(int64_t);
inline constexpr int32_t kDisjointRows = offsetof(CompareCounters, disjoint_rows) / sizeof(int64_t);
inline constexpr int32_t kCommonIds = offsetof(CompareCounters, common_ids) / sizeof(int64_t);

__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    CompareKernel(RouterConfig config, CompareTensors<AnyLogits> tensors, int64_t rows, CompareCounters* counters) {
  __shared__ Tile tiles[kWarpsPerBlock];
  __shared__ BlockCounts<sizeof(CompareCounters) / sizeof(int64_t)> counts;
  counts.Clear();
  const int64_t row = WarpIndex();
  if (row < rows) {
    const DeviceWarp warp;
    const WarpLanes<DeviceWarp> lanes(warp, tiles[threadIdx.x / kWarpSize].bytes);
    const RowComparison one = CompareRow<AnyArithmetic>(lanes, config, tensors, row);
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

cudaError_t RunCompare(Dtype dtype, const RouterConfig& config, const CompareTensors<const void*>& tensors,
                       int64_t rows, CompareCounters* counters, cudaStream_t stream) {
  const CompareTensors<AnyLogits> readable{.id_bytes = tensors.id_bytes,
                                           .replayed = tensors.replayed,
                                           .states = tensors.states,
                                           .live = tensors.live,
                                           .logits = {tensors.logits, dtype, config.rounding},
                                           .expert_bias = tensors.expert_bias};
  CompareKernel<<<BlocksFor(rows), kBlockThreads, 0, stream>>>(config, readable, rows, counters);
  return cudaGetLastError();
}

}  // namespace routing_replay::trainer
