// A ring of bytes in memory that two processes share: one writes, the other reads.
//
// Nothing that the other end does to this memory makes an end touch any other: it keeps its own position to itself, and
// takes the other's for a number that may be a lie.
#ifndef PROTO_WIRE_RING_BYTE_RING_H_
#define PROTO_WIRE_RING_BYTE_RING_H_

#include <sys/uio.h>

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace routing_replay {
inline namespace wire {

// The part of a ring that both ends see besides the bytes; zeros at first. Each end writes a cache line of its own, but
// for taking back the other's `waits`.
struct RingState {
  alignas(64) std::atomic<uint64_t> written;  // Bytes since the beginning.
  std::atomic<uint32_t> writer_waits;         // 1: it is to be woken when there is room.
  alignas(64) std::atomic<uint64_t> read;
  std::atomic<uint32_t> reader_waits;  // 1: it is to be woken when there are bytes.
};
static_assert(sizeof(RingState) == 128 && std::atomic<uint64_t>::is_always_lock_free);

// The end that writes. For one thread at a time. All errors are INVALID_ARGUMENT: the other end lies.
class RingWriter {
 public:
  // `bytes`: of the ring, as many as a power of two. Both must outlive this.
  RingWriter(RingState& state, absl::Span<uint8_t> bytes) : state_(state), bytes_(bytes) {}

  // Copies some of `pieces` into the ring, from their beginning. Returns how many bytes; 0: there is no room.
  absl::StatusOr<size_t> Write(absl::Span<const iovec> pieces);
  // After Write: whether the reader waits, and must be woken. Before the `last` of what is to be written it is left
  // alone while there is little: to be woken costs more than a copy of some KiB.
  bool MustWake(bool last);
  // Asks to be woken when there is room. False: there is some, and nobody may come to wake this end.
  absl::StatusOr<bool> Wait();

 private:
  absl::StatusOr<size_t> Room() const;

  RingState& state_;
  const absl::Span<uint8_t> bytes_;
  uint64_t written_ = 0;
};

// The end that reads, likewise.
class RingReader {
 public:
  RingReader(RingState& state, absl::Span<const uint8_t> bytes) : state_(state), bytes_(bytes) {}

  // Moves bytes from the ring into `space`, as many as are there and fit, or some of them; 0: there are none.
  absl::StatusOr<size_t> Read(absl::Span<const iovec> space);
  // After Read: whether the writer waits, and must be woken. It is left alone while there is little room.
  bool MustWake();
  // Asks to be woken when there are bytes. False: there are some.
  absl::StatusOr<bool> Wait();

 private:
  absl::StatusOr<size_t> Held() const;

  RingState& state_;
  const absl::Span<const uint8_t> bytes_;
  uint64_t read_ = 0;
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_RING_BYTE_RING_H_
