// Converts ids of any integer type to ids of one or two bytes.
#ifndef PROTO_WIRE_PAYLOAD_NARROW_H_
#define PROTO_WIRE_PAYLOAD_NARROW_H_

#include <cstdint>

#include "routing_replay/wire/tensor.h"

namespace routing_replay {
inline namespace wire {

// Bytes of one element; 0 for kUnspecified and for unknown numbers.
int32_t DTypeBytes(DType dtype);

// The exclusive upper limit for ids that NarrowIds wrote. NarrowIds reads −1 as the largest unsigned number, 255 for
// kI8. The limit is num_experts, but at most 128 for kI8 and 32768 for kI16, so that no negative element passes.
int64_t NarrowLimit(DType dtype, int32_t num_experts);

// Writes `rows` rows of `count` little-endian elements of `dtype`, without gaps, as `id_bytes` (1 or 2) bytes each to
// `to`. Rows begin at `from` (any alignment) and lie `stride` bytes apart. Returns false if an element does not fit:
// `to` has arbitrary values then. Uses the fastest instructions of this CPU, chosen at run time.
bool NarrowIds(DType dtype, const uint8_t* from, int64_t stride, int64_t rows, int64_t count, int32_t id_bytes,
               uint8_t* to);

// The element at `index`; negative elements stay negative.
int64_t ElementAt(DType dtype, const uint8_t* from, int64_t index);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_NARROW_H_
