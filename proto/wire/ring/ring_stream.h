// A connection whose bytes go through shared memory. Its Unix socket carries only wake-ups, and shows when the other
// end is gone.
#ifndef PROTO_WIRE_RING_RING_STREAM_H_
#define PROTO_WIRE_RING_RING_STREAM_H_

#include <memory>

#include "proto/wire/message/byte_stream.h"
#include "proto/wire/ring/shared_rings.h"

namespace routing_replay {
inline namespace wire {

// Bytes that the other end wrote can still be read after it has gone, unless it released the memory. INVALID_ARGUMENT:
// the other end stored an impossible position, or released the memory.
class RingStream final : public ByteStream {
 public:
  // `socket` leads to the process that has the other end. Nothing else may be sent on it.
  RingStream(std::unique_ptr<ByteStream> socket, std::unique_ptr<SharedRings> rings)
      : socket_(std::move(socket)), rings_(std::move(rings)) {}

  absl::StatusOr<size_t> Read(absl::Span<const iovec> space) override;
  absl::StatusOr<size_t> Write(absl::Span<const iovec> bytes) override;
  int fd() const override { return socket_->fd(); }
  uint32_t write_events() const override { return POLLIN; }
  // HasBytes and HasRoom look into the rings, not at the socket: both directions share it, and a wait for one direction
  // may have consumed the wake-up byte of the other. Errors are left to Read and Write.
  bool HasBytes() const override { return !rings_->reader().Wait().value_or(false); }
  bool HasRoom() const override { return !rings_->writer().Wait().value_or(false); }
  // No effect: the last frame of a call already marks its end, and the socket must stay open for an end that still has
  // bytes to write.
  void EndWrites() override {}

 private:
  void Wake() const;
  // Consumes the wake-up bytes that have arrived, and notices if the other end is gone.
  void TakeWakes();

  const std::unique_ptr<ByteStream> socket_;
  const std::unique_ptr<SharedRings> rings_;
  bool gone_ = false;
};

// Answers a client that asks for shared memory: sends one byte, with the descriptor `memory` attached, or without one
// if `memory` is -1. Returns false if sending failed.
bool SendMemory(int socket, int memory);
// Receives the answer that SendMemory sent. Returns the descriptor, which the caller must close, or -1 if the answer is
// that there is no memory. UNAVAILABLE if there is no valid answer.
absl::StatusOr<int> ReceiveMemory(int socket);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_RING_RING_STREAM_H_
