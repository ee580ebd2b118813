// Realign and router replay on a GPU: raw device pointers and a stream, nothing else.
//
// Each call checks its arguments and puts one kernel on the stream. It does not wait, allocate or make streams, so
// every call may be captured in a CUDA graph; a graph keeps the addresses and everything that is passed by value.
// Kernels compute the same as Realign (realign.h), RouterReplayForward and RouterReplayBackward (router.h), from the
// same source. Sums have the same order as on the CPU; only expf, log1pf and the like differ in their last bits. The
// same call on the same GPU always gives the same bits.
//
// Ids out of range do not stop a kernel: they are clamped and counted. Counters are in device memory, aligned to 8
// bytes; with null, nothing is counted. The caller sets them to zero once, kernels only add to them, and they can be
// read at any time.
//
// All pointers are device pointers that must stay valid until the kernel has run; tensors are contiguous and aligned to
// their elements' size. INVALID_ARGUMENT for invalid arguments (as the CPU's functions, and kField naming a missing
// pointer); INTERNAL with CUDA's message if CUDA rejects a launch. Thread-safe.
#ifndef ROUTING_REPLAY_TRAINER_REPLAY_CUDA_H_
#define ROUTING_REPLAY_TRAINER_REPLAY_CUDA_H_

#include <cstdint>

#include "absl/status/status.h"
#include "routing_replay/trainer/router_config.h"
#include "routing_replay/trainer/row_map.h"

struct CUstream_st;

namespace routing_replay::trainer {

using CudaStream = ::CUstream_st*;  // cudaStream_t; null is the default stream.

// OK if the kernels can run on the device. Else FAILED_PRECONDITION with a field that names what is missing:
// "cuda.driver" (no driver, or one too old for the CUDA version of this build), "cuda.device" (no such device),
// "cuda.architecture" (no code was compiled for this GPU). Slow, because it loads code: do not call it in the hot path.
// Does not change the current device.
absl::Status CheckCudaDevice(int32_t device);

// Executes a packed plan in one launch, which writes the index buffers of all local layers and the row states. Memory
// that the plan does not name is not touched.
struct CudaRealign {
  const uint8_t* packed_plan = nullptr;  // The bytes from PackPlan, at a multiple of kPackedPlanAlignment.
  const uint8_t* staging = nullptr;      // The staged bytes for which the plan was made.
  uint8_t* indices = nullptr;            // BufferLayout::bytes() bytes, at a multiple of 2.
  RowState* states = nullptr;            // BufferLayout::rows() entries.
  // Expected number of units, from which the grid size follows. Plans with more or fewer units also work, so for a
  // captured graph pass the usual number.
  int64_t units = 0;
};
absl::Status LaunchRealign(const CudaRealign& call, CudaStream stream);

// RouterReplayForward on the device, with N = rows. The tensors are those of RouterForwardInput and
// RouterForwardOutput.
struct CudaRouterForward {
  Dtype dtype = Dtype::kFloat32;
  int64_t rows = 0;
  const void* logits = nullptr;
  const uint8_t* indices = nullptr;
  const RowState* states = nullptr;
  const float* expert_bias = nullptr;  // May be null.
  void* probs = nullptr;
  uint8_t* routing_map = nullptr;
  uint8_t* chosen = nullptr;  // May be null.
  RouterCounters* counters = nullptr;
};
absl::Status LaunchRouterForward(const RouterConfig& config, const CudaRouterForward& call, CudaStream stream);

// RouterReplayBackward on the device.
struct CudaRouterBackward {
  Dtype dtype = Dtype::kFloat32;
  int64_t rows = 0;
  const void* logits = nullptr;
  const uint8_t* chosen = nullptr;
  const void* grad_probs = nullptr;
  void* grad_logits = nullptr;
  RouterCounters* counters = nullptr;  // Only clamped_ids is counted.
};
absl::Status LaunchRouterBackward(const RouterConfig& config, const CudaRouterBackward& call, CudaStream stream);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_REPLAY_CUDA_H_
