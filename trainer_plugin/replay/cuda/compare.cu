// Compare the replayed choice with the live one: one warp per row.
#include <cstddef>

#include "trainer_plugin/replay/cuda/dispatch.cuh"
#include "trainer_plugin/replay/cuda/kernels.h"
#include "trainer_plugin/replay/cuda/warp_rows.cuh"

namespace routing_replay::trainer {
namespace {

inline constexpr int32_t kRows = offsetof(CompareCounters, rows) / sizeof(int64_t);
inline constexpr int32_t kDifferentRows = offsetof(CompareCounters, different_rows) / sizeof(int64_t);
inline constexpr int32_t kDisjointRows = offsetof(CompareCounters, disjoint_rows) / sizeof(int64_t);
inline constexpr int32_t kCommonIds = offsetof(CompareCounters, common_ids) / sizeof(int64_t);

template <typename Types>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    CompareKernel(RouterConfig config, CompareTensors<typename Types::Element> tensors, int64_t rows,
                  CompareCounters* counters) {
  __shared__ Tile tiles[kWarpsPerBlock];
  __shared__ BlockCounts<sizeof(CompareCounters) / sizeof(int64_t)> counts;
  counts.Clear();
  const int64_t row = WarpIndex();
  if (row < rows) {
    const DeviceWarp warp;
    const WarpLanes<DeviceWarp> lanes(warp, tiles[threadIdx.x / kWarpSize].bytes);
    const RowComparison one = CompareRow<typename Types::Arithmetic>(lanes, config, tensors, row);
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

cudaError_t RunCompare(Dtype dtype, const RouterConfig& config, const CompareTensors<void>& tensors, int64_t rows,
                       CompareCounters* counters, cudaStream_t stream) {
  WithRowTypes(dtype, config.rounding, [&](auto types) {
    using Types = decltype(types);
    using T = typename Types::Element;
    const CompareTensors<T> typed{.id_bytes = tensors.id_bytes,
                                  .replayed = tensors.replayed,
                                  .states = tensors.states,
                                  .live = tensors.live,
                                  .logits = static_cast<const T*>(tensors.logits),
                                  .expert_bias = tensors.expert_bias};
    CompareKernel<Types><<<BlocksFor(rows), kBlockThreads, 0, stream>>>(config, typed, rows, counters);
  });
  return cudaGetLastError();
}

}  // namespace routing_replay::trainer
