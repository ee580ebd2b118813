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
  explicit Buffer(size_t size)
      : data_(size == 0 ? nullptr : static_cast<uint8_t*>(std::aligned_alloc(kAlignment, RoundUp(size)))),
        size_(size) {}

  Buffer(Buffer&& other) noexcept : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  uint8_t* data() { return data_.get(); }
  const uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  absl::Span<uint8_t> span() { return {data_.get(), size_}; }
  absl::Span<const uint8_t> span() const { return {data_.get(), size_}; }

 private:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t RoundUp(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };

  std::unique_ptr<uint8_t, Free> data_;
  size_t size_ = 0;
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_BUFFER_H_
