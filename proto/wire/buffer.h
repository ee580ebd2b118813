// Owned bytes on a 64-byte boundary.
#ifndef PROTO_WIRE_BUFFER_H_
#define PROTO_WIRE_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/types/span.h"

namespace routing_replay {
inline namespace wire {

// Move-only, fixed size, uninitialised at first, empty once moved from. SIMD loads and cudaMemcpyAsync are fastest on
// 64-byte boundaries; bytes inside a gRPC slice lie at any address.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size) : base_(size == 0 ? nullptr : std::malloc(RoundUp(size) + kShift)), size_(size) {
    if (size > 0) data_ = reinterpret_cast<uint8_t*>(RoundUp(reinterpret_cast<uintptr_t>(base_.get())));
  }

  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    base_ = std::move(other.base_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  absl::Span<uint8_t> span() { return {data_, size_}; }
  absl::Span<const uint8_t> span() const { return {data_, size_}; }

 private:
  static constexpr size_t kAlignment = 64, kShift = kAlignment - alignof(std::max_align_t);
  static constexpr size_t RoundUp(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };

  // Uses malloc and aligns by hand. glibc's aligned_alloc searches for a larger block than it then uses, so a freed
  // block is not reused for another of the same size, and a full store grows by an eighth.
  std::unique_ptr<void, Free> base_;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_BUFFER_H_
