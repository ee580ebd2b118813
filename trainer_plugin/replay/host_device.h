// RR_HOST_DEVICE marks functions that the CPU code and the CUDA kernels share; RR_UNROLL, before a loop, says that its
// arrays must become registers in a kernel.
#ifndef TRAINER_PLUGIN_REPLAY_HOST_DEVICE_H_
#define TRAINER_PLUGIN_REPLAY_HOST_DEVICE_H_

#ifdef __CUDACC__
#define RR_HOST_DEVICE __host__ __device__
#define RR_UNROLL _Pragma("unroll")
#else
#define RR_HOST_DEVICE
#define RR_UNROLL
#endif

#endif  // TRAINER_PLUGIN_REPLAY_HOST_DEVICE_H_
