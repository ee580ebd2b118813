// Record ids that a router wrote down: one thread per id.
#include "trainer_plugin/replay/cuda/kernels.h"
#include "trainer_plugin/replay/cuda/router_counts.cuh"

namespace routing_replay::trainer {
namespace {

template <typename Id>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    RecordIdsKernel(const Id* ids, int64_t count, int32_t num_experts, int32_t id_bytes, uint8_t* indices,
                    RouterCounters* counters) {
  __shared__ RouterBlockCounts counts;
  counts.Clear();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (index < count) counts.Add(kClampedIds, RecordId(ids, index, num_experts, id_bytes, indices));
  counts.AddTo(counters);
}

}  // namespace

cudaError_t LoadRecordIds() {
  return LoadKernels(RecordIdsKernel<int64_t>, RecordIdsKernel<int32_t>, RecordIdsKernel<int16_t>,
                     RecordIdsKernel<uint8_t>);
}

cudaError_t RunRecordIds(IdType type, const RouterConfig& config, int32_t id_bytes, const void* ids, int64_t count,
                         uint8_t* indices, RouterCounters* counters, cudaStream_t stream) {
  const auto run = [&](auto id) {
    using Id = decltype(id);
    const auto blocks = static_cast<uint32_t>((count + kBlockThreads - 1) / kBlockThreads);
    RecordIdsKernel<Id><<<blocks, kBlockThreads, 0, stream>>>(static_cast<const Id*>(ids), count, config.num_experts,
                                                              id_bytes, indices, counters);
  };
  switch (type) {
    case IdType::kInt64:
      run(int64_t());
      break;
    case IdType::kInt32:
      run(int32_t());
      break;
    case IdType::kInt16:
      run(int16_t());
      break;
    case IdType::kUint8:
      run(uint8_t());
      break;
  }
  return cudaGetLastError();
}

}  // namespace routing_replay::trainer
