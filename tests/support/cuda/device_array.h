// Arrays in device memory, for tests and benchmarks. A CUDA error ends the process with CUDA's message.
#ifndef TESTS_SUPPORT_CUDA_DEVICE_ARRAY_H_
#define TESTS_SUPPORT_CUDA_DEVICE_ARRAY_H_

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace routing_replay::testing {

inline void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::abort();
}

// Empty arrays have a null address, as empty spans do.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  // The content is not initialized.
  explicit DeviceArray(size_t size) : size_(size) {
    if (size > 0) CheckCuda(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)), "cudaMalloc");
  }
  explicit DeviceArray(absl::Span<const T> values) : DeviceArray(values.size()) { Upload(values); }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  size_t size() const { return size_; }

  // Copies `values` to the beginning of the array before it returns.
  void Upload(absl::Span<const T> values) {
    if (values.empty()) return;
    CheckCuda(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  // Copies the whole array to the host, after earlier work on the default stream.
  void Download(absl::Span<T> values) const {
    if (values.empty()) return;
    CheckCuda(cudaMemcpy(values.data(), data_, values.size() * sizeof(T), cudaMemcpyDeviceToHost), "download");
  }
  std::vector<T> Download() const {
    std::vector<T> values(size_);
    Download(absl::MakeSpan(values));
    return values;
  }
  void Fill(int byte) {
    if (size_ > 0) CheckCuda(cudaMemset(data_, byte, size_ * sizeof(T)), "cudaMemset");
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// A counter struct in device memory, initially zero.
template <typename Counters>
class DeviceCounters {
 public:
  DeviceCounters() : array_(size_t{1}) { array_.Fill(0); }
  Counters* data() const { return array_.data(); }
  Counters Read() const { return array_.Download()[0]; }

 private:
  DeviceArray<Counters> array_;
};

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_CUDA_DEVICE_ARRAY_H_
