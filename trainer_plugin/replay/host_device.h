// RR_HOST_DEVICE marks functions that the CPU code and the CUDA kernels share.
#ifndef TRAINER_PLUGIN_REPLAY_HOST_DEVICE_H_
#define TRAINER_PLUGIN_REPLAY_HOST_DEVICE_H_

#ifdef __CUDACC__
#define RR_HOST_DEVICE __host__ __device__
#else
#define RR_HOST_DEVICE
#endif

#endif  // TRAINER_PLUGIN_REPLAY_HOST_DEVICE_H_
