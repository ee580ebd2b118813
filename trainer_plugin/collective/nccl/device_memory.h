// What the CUDA runtime gives and wants back.
#ifndef TRAINER_PLUGIN_COLLECTIVE_NCCL_DEVICE_MEMORY_H_
#define TRAINER_PLUGIN_COLLECTIVE_NCCL_DEVICE_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::trainer {

inline absl::Status Cuda(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("nccl: ", call, ": ", cudaGetErrorString(error)));
}

// Makes a device the current one while it lives.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    if (cudaGetDevice(&before_) == cudaSuccess && before_ != device) cudaSetDevice(device);
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

class Event {
 public:
  Event() = default;
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Once, on the current device.
  absl::Status Create() { return Cuda("cudaEventCreate", cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Memory that grows and loses its content then. `Allocate` and `Free` are functions of the runtime.
template <cudaError_t (*Allocate)(void**, size_t), cudaError_t (*Free)(void*)>
class GrowingMemory {
 public:
  GrowingMemory() = default;
  ~GrowingMemory() { Clear(); }
  GrowingMemory(const GrowingMemory&) = delete;
  GrowingMemory& operator=(const GrowingMemory&) = delete;

  absl::Status Reserve(size_t size) {
    if (size <= size_) return absl::OkStatus();
    Clear();
    absl::Status status = Cuda("memory", Allocate(&data_, size));
    if (status.ok()) size_ = size;
    return status;
  }
  uint8_t* data() { return static_cast<uint8_t*>(data_); }

 private:
  void Clear() {
    if (data_ != nullptr) Free(data_);
    data_ = nullptr;
    size_ = 0;
  }

  void* data_ = nullptr;
  size_t size_ = 0;
};

using DeviceMemory = GrowingMemory<&cudaMalloc, &cudaFree>;
using PinnedMemory = GrowingMemory<&cudaMallocHost, &cudaFreeHost>;

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_COLLECTIVE_NCCL_DEVICE_MEMORY_H_
