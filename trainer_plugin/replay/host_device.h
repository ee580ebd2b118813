// RR_HOST_DEVICE marks functions that the CPU code and the CUDA kernels share. Before a loop, RR_UNROLL says that its
// arrays must become registers in a kernel; RR_NO_UNROLL says that the loop has few passes and is not worth many
// registers.
#ifndef TRAINER_PLUGIN_REPLAY_HOST_DEVICE_H_
#define TRAINER_PLUGIN_REPLAY_HOST_DEVICE_H_

#ifdef __CUDACC__
#define RR_HOST_DEVICE __host__ __device__
#define RR_UNROLL _Pragma("unroll")
#define RR_NO_UNROLL _Pragma("unroll 1")
#else
#define RR_HOST_DEVICE
#define RR_UNROLL
#define RR_NO_UNROLL
#endif

#endif  // TRAINER_PLUGIN_REPLAY_HOST_DEVICE_H_
