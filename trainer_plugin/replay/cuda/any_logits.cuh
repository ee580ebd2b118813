// Logits whose dtype is known when they are read: kernels that read them and write none are compiled once for all.
#ifndef TRAINER_PLUGIN_REPLAY_CUDA_ANY_LOGITS_CUH_
#define TRAINER_PLUGIN_REPLAY_CUDA_ANY_LOGITS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "routing_replay/trainer/dtype.h"
#include "routing_replay/trainer/router_config.h"

namespace routing_replay::trainer {

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

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_CUDA_ANY_LOGITS_CUH_
