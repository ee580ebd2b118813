// The kernels of a router, one warp per row: replay forward and backward, record, compare. Products and sums are
// rounded apart, as torch's operators and the CPU code do: a fused one would differ from both.
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

// Calls `body` with the RowTypes. Both roundings are the same for fp32: one kernel serves them.
template <typename Body>
void WithRowTypes(Dtype dtype, Rounding rounding, Body&& body) {
  switch (dtype) {
    case Dtype::kFloat32:
      return body(RowTypes<float, FloatArithmetic<float>>());
    case Dtype::kFloat64:
      return WithRounding<double>(rounding, body);
    case Dtype::kBfloat16:
      return WithRounding<__nv_bfloat16>(rounding, body);
    case Dtype::kFloat16:
      return WithRounding<__half>(rounding, body);
  }
}

// Calls `body` with each of them.
template <typename Body>
void ForEachRowTypes(Body&& body) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16, Dtype::kFloat16}) {
    WithRowTypes(dtype, Rounding::kOnce, body);
    if (dtype != Dtype::kFloat32) WithRowTypes(dtype, Rounding::kEachStep, body);
  }
}

// A pointer to them, read as fp32. The dtype is the same for all lanes, so they take the same branch.
struct AnyLogits {
  const void* data;
  Dtype dtype;
  Rounding rounding;

  __device__ AnyLogits operator+(int64_t count) const {
    const int64_t bytes = dtype == Dtype::kFloat64 ? 8 : dtype == Dtype::kFloat32 ? 4 : 2;
    return {static_cast<const uint8_t*>(data) + count * bytes, dtype, rounding};
  }
  __device__ float operator[](int32_t index) const {
    switch (dtype) {
      case Dtype::kFloat64:
        return static_cast<float>(static_cast<const double*>(data)[index]);
      case Dtype::kBfloat16:
        return static_cast<float>(static_cast<const __nv_bfloat16*>(data)[index]);
      case Dtype::kFloat16:
        return static_cast<float>(static_cast<const __half*>(data)[index]);
      default:
        return static_cast<const float*>(data)[index];
    }
  }
  // fp64 holds every fp32: nothing is rounded.
  __device__ float Round(float x) const {
    if (rounding == Rounding::kOnce) return x;
    if (dtype == Dtype::kBfloat16) return static_cast<float>(static_cast<__nv_bfloat16>(x));
    return dtype == Dtype::kFloat16 ? static_cast<float>(static_cast<__half>(x)) : x;
  }
};

// FloatArithmetic or SteppedArithmetic as the logits say, for scores alone.
struct AnyArithmetic {
  __device__ static float RoundScore(const AnyLogits& logits, float x) { return logits.Round(x); }
};

// Places of the members, in 64-bit numbers.
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
