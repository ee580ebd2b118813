// The shared row arithmetic as kernels of one thread per row: valid device code for every dtype of logits.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "trainer_plugin/replay/filler.h"
#include "trainer_plugin/replay/router_row.h"

namespace routing_replay::trainer {

// probs [rows][K] from logits [rows][E]; the live choice where ids is null.
template <typename T>
__global__ void RowForwardKernel(RouterConfig config, int64_t rows, const T* logits, const uint8_t* ids,
                                 int32_t id_bytes, const float* expert_bias, float* probs) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  uint16_t chosen[kMaxSlots];
  const T* row_logits = logits + row * config.num_experts;
  if (ids == nullptr) {
    ChooseLive<FloatArithmetic<T>>(config, row_logits, expert_bias, chosen);
  } else {
    LoadRowIds(config, ids, id_bytes, row, chosen);
  }
  ForwardRow<FloatArithmetic<T>>(config, row_logits, chosen, probs + row * config.top_k);
}

// grad_logits [rows][E] from grad_probs [rows][E].
template <typename T>
__global__ void RowBackwardKernel(RouterConfig config, int64_t rows, const T* logits, const uint8_t* ids,
                                  int32_t id_bytes, const T* grad_probs, T* grad_logits) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  uint16_t chosen[kMaxSlots];
  LoadRowIds(config, ids, id_bytes, row, chosen);
  const int64_t first = row * config.num_experts;
  BackwardRow<FloatArithmetic<T>>(config, logits + first, chosen, grad_probs + first, grad_logits + first);
}

// Filler rows 0 … rows - 1 of one layer.
__global__ void FillerKernel(FillerShape shape, int64_t rows, int32_t layer, int32_t id_bytes, uint8_t* ids) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  for (int32_t k = 0; k < shape.top_k; ++k) {
    StoreId(ids, id_bytes, row * shape.top_k + k, FillerId(shape, row, k, layer));
  }
}

#define RR_INSTANTIATE(T)                                                                                            \
  template __global__ void RowForwardKernel<T>(RouterConfig, int64_t, const T*, const uint8_t*, int32_t,             \
                                               const float*, float*);                                                \
  template __global__ void RowBackwardKernel<T>(RouterConfig, int64_t, const T*, const uint8_t*, int32_t, const T*, T*)
RR_INSTANTIATE(float);
RR_INSTANTIATE(double);
RR_INSTANTIATE(__half);
RR_INSTANTIATE(__nv_bfloat16);
#undef RR_INSTANTIATE

}  // namespace routing_replay::trainer
