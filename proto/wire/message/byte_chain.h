// Bytes that lie in several places: how a gRPC ByteBuffer looks without gRPC.
#ifndef PROTO_WIRE_MESSAGE_BYTE_CHAIN_H_
#define PROTO_WIRE_MESSAGE_BYTE_CHAIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "proto/wire/buffer.h"

namespace routing_replay {

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

  // Bytes [offset, offset + out.size()) copied to `out`. Requires that they exist.
  void CopyTo(size_t offset, absl::Span<uint8_t> out) const;
  // The chain of bytes [offset, offset + size). Requires that they exist.
  ByteChain Sub(size_t offset, size_t size) const;
  // The bytes in one piece: of the only span if they lie in one, else copied into `scratch`.
  absl::Span<const uint8_t> Flatten(Buffer& scratch) const;

 private:
  std::vector<absl::Span<const uint8_t>> spans_;
  size_t size_ = 0;
};

}  // namespace routing_replay

#endif  // PROTO_WIRE_MESSAGE_BYTE_CHAIN_H_
