// Conversions between gRPC and our code: messages as byte chains without a copy either way, statuses with their
// details, small numbers as tags of a completion queue, and what ThreadSanitizer must know about gRPC.
#ifndef PROTO_WIRE_MESSAGE_GRPC_BYTES_H_
#define PROTO_WIRE_MESSAGE_GRPC_BYTES_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/message/byte_chain.h"

#ifdef RR_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

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
  // Takes ownership of the bytes.
  void Add(std::string bytes);
  // Adds the bytes by reference. `owner` keeps them alive; gRPC releases it, on any thread, when it has sent the bytes.
  void Add(absl::Span<const uint8_t> bytes, std::shared_ptr<const void> owner);
  grpc::ByteBuffer Build();

 private:
  std::vector<grpc::Slice> slices_;
};

// Keeps the code, the message and the ErrorDetail.
grpc::Status ToGrpcStatus(const absl::Status& status);
// For a client. CANCELLED without details becomes UNAVAILABLE: it is how gRPC ends the last calls of a stopping server.
// A caller that cancels its own call ignores the status, and when our servers cancel a call, the status has details.
absl::Status FromGrpcStatus(const grpc::Status& status);

// A completion queue treats tags as opaque addresses, so a number can be used as a tag.
inline void* QueueTag(intptr_t number) {
  return reinterpret_cast<void*>(number);  // NOLINT(performance-no-int-to-ptr): it is never dereferenced.
}
inline intptr_t NumberOf(void* queue_tag) { return reinterpret_cast<intptr_t>(queue_tag); }

// ThreadSanitizer cannot see synchronization inside libraries that were built without it, such as gRPC. Where one of
// our threads passes something to another through gRPC, both call these functions: everything this thread did before
// HandOver happens before everything another thread does after TakeOver with the same address.
inline void HandOver([[maybe_unused]] void* what) {
#ifdef RR_THREAD_SANITIZER
  __tsan_release(what);
#endif
}

inline void TakeOver([[maybe_unused]] void* what) {
#ifdef RR_THREAD_SANITIZER
  __tsan_acquire(what);
#endif
}

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MESSAGE_GRPC_BYTES_H_
