// A connection whose bytes go through shared memory. Its Unix socket wakes who waits, and says who is gone.
#ifndef PROTO_WIRE_RING_RING_STREAM_H_
#define PROTO_WIRE_RING_RING_STREAM_H_

#include <memory>

#include "proto/wire/message/byte_stream.h"
#include "proto/wire/ring/shared_rings.h"

namespace routing_replay {
inline namespace wire {

// What was written is still read when the end that wrote it is gone, unless that took its memory with it.
// INVALID_ARGUMENT: the other end lies, or has taken it.
class RingStream final : public ByteStream {
 public:
  // `socket`: to the process that has the other end, and nothing else is sent on it.
  RingStream(std::unique_ptr<ByteStream> socket, std::unique_ptr<SharedRings> rings)
      : socket_(std::move(socket)), rings_(std::move(rings)) {}

  absl::StatusOr<size_t> Read(absl::Span<const iovec> space) override;
  absl::StatusOr<size_t> Write(absl::Span<const iovec> bytes) override;
  int fd() const override { return socket_->fd(); }
  uint32_t write_events() const override { return POLLIN; }
  // What was sent to wake one way may have been taken by the other. What is wrong is said by Read and Write.
  bool HasBytes() const override { return !rings_->reader().Wait().value_or(false); }
  bool HasRoom() const override { return !rings_->writer().Wait().value_or(false); }
  // The end of a call is the last word of its frames; the socket stays whole for who still has bytes to write.
  void EndWrites() override {}

 private:
  void Wake() const;
  // Takes what has come to wake this end, and notices whether the other one is gone.
  void TakeWakes();

  const std::unique_ptr<ByteStream> socket_;
  const std::unique_ptr<SharedRings> rings_;
  bool gone_ = false;
};

// The byte that answers a client that asks for memory, with a descriptor of it, or without any. False: it did not go.
bool SendMemory(int socket, int memory);
// The other end's: the descriptor, which is the caller's, or -1 where there is none. UNAVAILABLE.
absl::StatusOr<int> ReceiveMemory(int socket);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_RING_RING_STREAM_H_
