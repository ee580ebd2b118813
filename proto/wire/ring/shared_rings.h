// Memory that two processes share: one ring of bytes for each direction. One process writes a ring, the other reads it.
//
// Neither end trusts the other. Each end keeps its own position in private memory and checks the other end's position
// before use, so a faulty peer cannot make it access memory outside the ring.
#ifndef PROTO_WIRE_RING_SHARED_RINGS_H_
#define PROTO_WIRE_RING_SHARED_RINGS_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace routing_replay {
inline namespace wire {

// The shared state of a ring, besides its bytes; initially zero. Each end writes its own cache line. The only
// exception: an end clears the other's `waits` flag when it wakes it.
struct RingState {
  alignas(64) std::atomic<uint64_t> written;  // Total bytes written since the start.
  std::atomic<uint32_t> writer_waits;         // 1: the writer must be woken when there is room.
  alignas(64) std::atomic<uint64_t> read;
  std::atomic<uint32_t> reader_waits;  // 1: the reader must be woken when there are bytes.
};
static_assert(sizeof(RingState) == 128 && std::atomic<uint64_t>::is_always_lock_free);

// The writing end. Not thread-safe. All errors are INVALID_ARGUMENT: the other end has stored an impossible position.
class RingWriter {
 public:
  // The size of `bytes`, the ring's memory, must be a power of two. Both arguments must outlive this object.
  RingWriter(RingState& state, absl::Span<uint8_t> bytes) : state_(state), bytes_(bytes) {}

  // Copies bytes of `pieces` into the ring and returns how many; 0 if there is no room. It may copy fewer than fit.
  absl::StatusOr<size_t> Write(absl::Span<const iovec> pieces);
  // Call it after Write: true if the reader waits and must be woken now. While more bytes follow (`last` is false), the
  // reader is woken only once the ring is half full: a wake-up costs more than copying some KiB.
  bool MustWake(bool last);
  // Asks to be woken when there is room. Returns false if there is room already: then do not wait, because possibly
  // nobody sends a wake-up.
  absl::StatusOr<bool> Wait();

 private:
  absl::StatusOr<size_t> Room() const;

  RingState& state_;
  const absl::Span<uint8_t> bytes_;
  uint64_t written_ = 0;
};

// The reading end. Rules and errors are those of RingWriter.
class RingReader {
 public:
  RingReader(RingState& state, absl::Span<const uint8_t> bytes) : state_(state), bytes_(bytes) {}

  // Moves bytes from the ring into `space` and returns how many; 0 if the ring is empty. It may move fewer bytes than
  // there are.
  absl::StatusOr<size_t> Read(absl::Span<const iovec> space);
  // Call it after Read: true if the writer waits and must be woken now. The writer is not woken before half of the ring
  // is empty.
  bool MustWake();
  // Asks to be woken when there are bytes. Returns false if there are some already.
  absl::StatusOr<bool> Wait();

 private:
  absl::StatusOr<size_t> Held() const;

  RingState& state_;
  const absl::Span<const uint8_t> bytes_;
  uint64_t read_ = 0;
};

class SharedRings {
 public:
  // Size of each ring: small enough that bytes are still in the CPU caches when they are read.
  static constexpr size_t kRingBytes = 1 << 20;
  // Size of the whole shared memory.
  static constexpr size_t kBytes = 4096 + 2 * kRingBytes;

  struct Made {
    std::unique_ptr<SharedRings> rings;
    int fd;  // Descriptor for the other end; the caller must close it.
  };
  // Creates the shared memory. It is allocated at once, and its size is sealed. UNAVAILABLE if that fails.
  static absl::StatusOr<Made> Make();
  // Maps memory that the other end made. Does not keep `fd`. INVALID_ARGUMENT if `fd` is not memory made by Make;
  // UNAVAILABLE if it cannot be mapped.
  static absl::StatusOr<std::unique_ptr<SharedRings>> Map(int fd);
  // Unmaps the memory. The end that made it also frees it, even if the other end still has it mapped.
  ~SharedRings();
  SharedRings(const SharedRings&) = delete;
  SharedRings& operator=(const SharedRings&) = delete;

  RingWriter& writer() { return writer_; }
  RingReader& reader() { return reader_; }

 private:
  SharedRings(uint8_t* memory, bool made);

  uint8_t* const memory_;
  const bool made_;
  const pid_t process_;
  RingWriter writer_;
  RingReader reader_;
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_RING_SHARED_RINGS_H_
