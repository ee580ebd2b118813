// The host functions of kernels.cu. The caller must have checked the arguments; a router call must have at least one
// row. They return CUDA's error code.
#ifndef TRAINER_PLUGIN_REPLAY_CUDA_KERNELS_H_
#define TRAINER_PLUGIN_REPLAY_CUDA_KERNELS_H_

#include <driver_types.h>

#include "routing_replay/trainer/replay_cuda.h"
#include "routing_replay/trainer/router_config.h"

namespace routing_replay::trainer {

// Loads all kernels for the current device. Otherwise the first launch would load them, which is not allowed during a
// graph capture.
cudaError_t LoadKernels();

cudaError_t RunRealign(const CudaRealign& call, cudaStream_t stream);
cudaError_t RunRouterForward(const RouterConfig& config, const CudaRouterForward& call, cudaStream_t stream);
cudaError_t RunRouterBackward(const RouterConfig& config, const CudaRouterBackward& call, cudaStream_t stream);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_CUDA_KERNELS_H_
