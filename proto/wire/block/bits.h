// Fixed-width bit fields, LSB first: bit n of a stream is bit n % 8 of byte n / 8. See FORMAT.md.
#ifndef PROTO_WIRE_BLOCK_BITS_H_
#define PROTO_WIRE_BLOCK_BITS_H_

#include <cstdint>

#include "absl/types/span.h"

namespace routing_replay {
inline namespace wire {

// Copies `bits` bits from bit `from_bit` of `from` to bit `to_bit` of `to`; the other bits of `to` stay. Both must be
// long enough and must not overlap.
void CopyBits(const uint8_t* from, int64_t from_bit, uint8_t* to, int64_t to_bit, int64_t bits);

// Packs `count` ids (id_bytes 1 or 2 each, little-endian) into `width`-bit fields from bit 0 of `out` on. `out` must
// hold ceil(count * width / 8) bytes; bits behind the last field are zero. Every id must fit in `width` bits.
void PackIds(const uint8_t* ids, int id_bytes, int width, int64_t count, uint8_t* out);

// The inverse of PackIds, from bit `bit_offset` (0 … 7) of `packed` on.
void UnpackIds(absl::Span<const uint8_t> packed, int bit_offset, int width, int64_t count, int id_bytes, uint8_t* ids);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_BLOCK_BITS_H_
