// Converts ids of any integer type to ids of one or two bytes, and finds the largest.
#ifndef PROTO_WIRE_PAYLOAD_NARROW_H_
#define PROTO_WIRE_PAYLOAD_NARROW_H_

#include <cstdint>

#include "routing_replay/wire/tensor.h"

namespace routing_replay {
inline namespace wire {

// Bytes of one element; 0 for kUnspecified and for unknown numbers.
int32_t DTypeBytes(DType dtype);

// Writes `count` little-endian elements of `dtype` at `from` (any alignment) as `id_bytes` (1 or 2) bytes each to `to`.
// Returns the largest value, taken as unsigned, so that a negative element is larger than every id. Elements that do
// not fit get an arbitrary value: the caller compares the result with E. Uses the fastest instructions of this CPU,
// chosen at run time.
uint64_t NarrowIds(DType dtype, const uint8_t* from, int64_t count, int32_t id_bytes, uint8_t* to);

// The element at `index`, sign kept.
int64_t ElementAt(DType dtype, const uint8_t* from, int64_t index);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_NARROW_H_
