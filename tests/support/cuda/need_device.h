// Skips a program on a machine without a GPU.
#ifndef TESTS_SUPPORT_CUDA_NEED_DEVICE_H_
#define TESTS_SUPPORT_CUDA_NEED_DEVICE_H_

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

namespace routing_replay::testing {

// Ends the process with exit status 77 and the reason if no CUDA device can be used.
inline void NeedDevice() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return;
  std::printf("no CUDA device: %s\n", error == cudaSuccess ? "none is there" : cudaGetErrorString(error));
  std::exit(77);
}

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_CUDA_NEED_DEVICE_H_
