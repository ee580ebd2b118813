// Memory that two processes share: one ring of bytes for each direction.
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
  // Size of each ring: small enough that bytes are still in the CPU caches when they are read.
  static constexpr size_t kRingBytes = 1 << 20;
  // Size of the whole shared memory.
  static constexpr size_t kBytes = 4096 + 2 * kRingBytes;

  struct Made {
    std::unique_ptr<SharedRings> rings;
    int fd;  // Descriptor for the other end; the caller must close it.
  };
  // Creates the shared memory. It is allocated at once, and its size is sealed. UNAVAILABLE naming the call that
  // failed.
  static absl::StatusOr<Made> Make();
  // Maps memory that the other end made. Does not keep `fd`. INVALID_ARGUMENT if `fd` is not memory made by Make;
  // UNAVAILABLE if it cannot be mapped.
  static absl::StatusOr<std::unique_ptr<SharedRings>> Map(int fd);
  // The process that made the memory returns it to the system now, even if the other end still has it mapped.
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
