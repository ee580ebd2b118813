// Bytes that lie in several places in memory, like a gRPC ByteBuffer but without gRPC.
#ifndef PROTO_WIRE_MESSAGE_BYTE_CHAIN_H_
#define PROTO_WIRE_MESSAGE_BYTE_CHAIN_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "proto/wire/buffer.h"

namespace routing_replay {
inline namespace wire {

// A sequence of spans read as one. Owns nothing. Copyable.
class ByteChain {
 public:
  ByteChain() = default;
  explicit ByteChain(absl::Span<const uint8_t> bytes) { Append(bytes); }

  void Append(absl::Span<const uint8_t> bytes) {
    if (!bytes.empty()) spans_.push_back(bytes);
    size_ += bytes.size();
  }
  size_t size() const { return size_; }
  absl::Span<const absl::Span<const uint8_t>> spans() const { return spans_; }

  // Returns all bytes as one span: without a copy if the chain has only one span, else copied into `scratch`.
  absl::Span<const uint8_t> Flatten(Buffer& scratch) const;

 private:
  std::vector<absl::Span<const uint8_t>> spans_;
  size_t size_ = 0;
};

// A read position in a chain; the chain must outlive it. It only moves forward, so a walk over the whole chain takes
// linear time. Copy the cursor to remember a position.
class ChainCursor {
 public:
  explicit ChainCursor(const ByteChain& chain) : chain_(&chain) {}

  size_t position() const { return position_; }
  size_t left() const { return chain_->size() - position_; }

  // Calls `visit` for each contiguous part of the next `bytes` bytes and moves past them. Requires left() >= bytes.
  template <typename Visit>
  void Pass(size_t bytes, Visit visit) {
    while (bytes > 0) {
      const absl::Span<const uint8_t> rest = chain_->spans()[span_].subspan(in_span_);
      const size_t taken = std::min(bytes, rest.size());
      visit(rest.first(taken));
      bytes -= taken;
      position_ += taken;
      in_span_ += taken;
      if (taken == rest.size()) {
        ++span_;
        in_span_ = 0;
      }
    }
  }
  void Skip(size_t bytes) {
    Pass(bytes, [](absl::Span<const uint8_t>) {});
  }
  // Copies the next out.size() bytes and moves past them. Requires that they exist.
  void CopyTo(absl::Span<uint8_t> out);
  // Moves past the next `bytes` bytes and returns them in one piece: in place if they lie in one span, else copied into
  // `scratch`, which grows as needed. Requires left() >= bytes.
  absl::Span<const uint8_t> Take(size_t bytes, Buffer& scratch);

 private:
  const ByteChain* chain_;
  size_t position_ = 0;
  size_t span_ = 0;
  size_t in_span_ = 0;
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MESSAGE_BYTE_CHAIN_H_
