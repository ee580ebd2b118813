// Owned bytes on a 64-byte boundary.
#ifndef PROTO_WIRE_BUFFER_H_
#define PROTO_WIRE_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/types/span.h"

namespace routing_replay {
inline namespace wire {

// Move-only, of fixed size, not initialised, empty once moved from. The alignment is for SIMD loads and
// cudaMemcpyAsync, which are fastest on 64-byte boundaries.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size) : base_(size == 0 ? nullptr : Allocate(RoundUp(size) + kShift)), size_(size) {
    if (size > 0) data_ = reinterpret_cast<uint8_t*>(RoundUp(reinterpret_cast<uintptr_t>(base_)));
  }

  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    other.Reset();
    return *this;
  }
  ~Buffer() { Reset(); }

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  absl::Span<uint8_t> span() { return {data_, size_}; }
  absl::Span<const uint8_t> span() const { return {data_, size_}; }

 private:
  static constexpr size_t kAlignment = 64, kShift = kAlignment - alignof(std::max_align_t);
  static constexpr size_t RoundUp(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }
  static void* Allocate(size_t size);
  static void Free(void* memory, size_t size);

  void Reset() {
    if (base_ != nullptr) Free(base_, RoundUp(size_) + kShift);
    base_ = nullptr;
    data_ = nullptr;
    size_ = 0;
  }

  // Memory of malloc, aligned by hand. glibc's aligned_alloc searches for a larger block than it then uses, so it does
  // not reuse a freed block for another of the same size, and a full store takes an eighth more memory.
  //
  // Up to 16 MiB of freed memory is kept for later buffers of 32 KiB to 2 MiB. In a process without TuneAllocator
  // (allocator.h), glibc returns it to the kernel and later takes it back page by page: 2,000 page faults for a
  // training step of 24 MB, a twentieth of the time of its appends.
  void* base_ = nullptr;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_BUFFER_H_
