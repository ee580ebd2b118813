// From a dtype and a rounding that are known when a kernel is launched to its template arguments.
#ifndef TRAINER_PLUGIN_REPLAY_CUDA_DISPATCH_CUH_
#define TRAINER_PLUGIN_REPLAY_CUDA_DISPATCH_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "routing_replay/trainer/dtype.h"
#include "trainer_plugin/replay/arithmetic.h"

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

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_CUDA_DISPATCH_CUH_
