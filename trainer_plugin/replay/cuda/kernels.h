// The host functions of the kernel files. The caller must have checked the arguments, which must not be empty. They
// return cudaGetLastError().
#ifndef TRAINER_PLUGIN_REPLAY_CUDA_KERNELS_H_
#define TRAINER_PLUGIN_REPLAY_CUDA_KERNELS_H_

#include <driver_types.h>

#include <cstdint>

#include "routing_replay/trainer/router_config.h"
#include "trainer_plugin/replay/router_row.h"

namespace routing_replay::trainer {

// The Load functions load the kernels for the current device. Otherwise the first launch would load them, which is not
// allowed during a graph capture.
cudaError_t LoadRealign();
cudaError_t LoadRouterForward();
cudaError_t LoadRouterBackward();
cudaError_t LoadCompare();

cudaError_t RunRealign(const uint8_t* packed, const uint8_t* staging, uint8_t* indices, RowState* states, int64_t units,
                       cudaStream_t stream);
cudaError_t RunRouterForward(Dtype dtype, const RouterConfig& config, const RouterForwardTensors<void>& tensors,
                             int64_t rows, RouterCounters* counters, cudaStream_t stream);
cudaError_t RunRouterBackward(Dtype dtype, const RouterConfig& config, const RouterBackwardTensors<void>& tensors,
                              int64_t rows, RouterCounters* counters, cudaStream_t stream);
cudaError_t RunCompare(const RouterConfig& config, const CompareTensors& tensors, int64_t rows,
                       CompareCounters* counters, cudaStream_t stream);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_CUDA_KERNELS_H_
