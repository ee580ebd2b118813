// gRPC ByteBuffers as byte chains, without a copy either way.
#ifndef PROTO_TRANSPORT_BYTE_BUFFER_H_
#define PROTO_TRANSPORT_BYTE_BUFFER_H_

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/message/byte_chain.h"

namespace routing_replay {
inline namespace wire {

// A received message: keeps gRPC's slices alive as long as it lives. Move-only.
class ReceivedBytes {
 public:
  // Takes the slices of `buffer`, which is empty afterwards. INTERNAL if gRPC cannot give them (a compressed message
  // that is malformed).
  static absl::StatusOr<ReceivedBytes> From(grpc::ByteBuffer& buffer);

  const ByteChain& chain() const { return chain_; }

 private:
  std::vector<grpc::Slice> slices_;
  ByteChain chain_;
};

// Collects the parts of a message to send.
class ByteBufferBuilder {
 public:
  // Moves the bytes in.
  void Add(std::string bytes);
  // By reference: `owner` is released when gRPC has sent the bytes (from any thread).
  void Add(absl::Span<const uint8_t> bytes, std::shared_ptr<const void> owner);
  grpc::ByteBuffer Build();

 private:
  std::vector<grpc::Slice> slices_;
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_TRANSPORT_BYTE_BUFFER_H_
