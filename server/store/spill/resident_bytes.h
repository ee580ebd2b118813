// The bytes and CRCs of a block in as little memory as it takes, for as long as somebody holds them.
#ifndef SERVER_STORE_SPILL_RESIDENT_BYTES_H_
#define SERVER_STORE_SPILL_RESIDENT_BYTES_H_

#include <utility>

#include "proto/wire/block/block.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::server {

// One holder of them; a copy is another one. A small block is one allocation: holders, CRCs, bytes. Any other one is
// taken over as it is. Where what is follows from geometry, rows and codec: nothing is kept of them. Not thread-safe;
// what is held is.
class ResidentBytes {
 public:
  ResidentBytes() = default;
  explicit ResidentBytes(Block block);
  ResidentBytes(const ResidentBytes& other);
  ResidentBytes(ResidentBytes&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  ResidentBytes& operator=(ResidentBytes other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  ~ResidentBytes();

  bool empty() const { return held_ == nullptr; }
  // As long as somebody holds the bytes. `rows` and `codec` are those of the block. Requires that it is not empty.
  BlockView view(const Geometry& geometry, RowRange rows, Codec codec) const;

 private:
  // A shared_ptr would count in three words more, which is much beside a block of 16 rows.
  struct Held;
  struct Large;

  static Held* CopyOf(const Block& block);

  Held* held_ = nullptr;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SPILL_RESIDENT_BYTES_H_
