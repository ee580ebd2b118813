// Memory that two processes share: a ring of bytes for each way.
#ifndef PROTO_WIRE_RING_SHARED_RINGS_H_
#define PROTO_WIRE_RING_SHARED_RINGS_H_

#include <sys/types.h>

#include <memory>

#include "absl/status/statusor.h"
#include "proto/wire/ring/byte_ring.h"

namespace routing_replay {
inline namespace wire {

class SharedRings {
 public:
  // Bytes of each ring: what is read was written a moment ago, and is still in the caches.
  static constexpr size_t kRingBytes = 1 << 20;
  // Of the whole.
  static constexpr size_t kBytes = 4096 + 2 * kRingBytes;

  struct Made {
    std::unique_ptr<SharedRings> rings;
    int fd;  // For the other end; the caller's to close.
  };
  // Takes the memory at once; nobody can change its size. UNAVAILABLE, naming what failed.
  static absl::StatusOr<Made> Make();
  // The other end's. Does not keep `fd`. INVALID_ARGUMENT if it is not what Make gives out; UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<SharedRings>> Map(int fd);
  // The one that made the memory gives it back to the system now, even while the other end still has it.
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
