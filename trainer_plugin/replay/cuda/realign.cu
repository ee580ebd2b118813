// Realign: one warp per unit of a packed plan; the grid has as many warps as the usual plan has units.
#include "trainer_plugin/replay/cuda/kernels.h"
#include "trainer_plugin/replay/cuda/warp_rows.cuh"
#include "trainer_plugin/replay/packed_realign.h"

namespace routing_replay::trainer {
namespace {

static_assert(kUnitLanes == kWarpSize, "a warp carries a unit out");

// More warps would only wait for others to end.
constexpr int64_t kMaxWarps = 1 << 16;

__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    RealignKernel(const uint8_t* packed, const uint8_t* staging, uint8_t* indices, RowState* states) {
  const int64_t units = NumUnits(*reinterpret_cast<const PackedHeader*>(packed));
  const int32_t lane = static_cast<int32_t>(threadIdx.x % kWarpSize);
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarpsPerBlock;
  for (int64_t unit = WarpIndex(); unit < units; unit += warps) RunUnit(lane, unit, packed, staging, indices, states);
}

}  // namespace

cudaError_t LoadRealign() { return LoadKernels(RealignKernel); }

cudaError_t RunRealign(const uint8_t* packed, const uint8_t* staging, uint8_t* indices, RowState* states, int64_t units,
                       cudaStream_t stream) {
  const int64_t warps = units < 1 ? 1 : units < kMaxWarps ? units : kMaxWarps;
  RealignKernel<<<BlocksFor(warps), kBlockThreads, 0, stream>>>(packed, staging, indices, states);
  return cudaGetLastError();
}

}  // namespace routing_replay::trainer
