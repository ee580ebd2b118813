// Ids of any integer type → ids of one or two bytes, with the largest one seen.
#ifndef PROTO_WIRE_PAYLOAD_NARROW_H_
#define PROTO_WIRE_PAYLOAD_NARROW_H_

#include <cstdint>

#include "routing_replay/wire/tensor.h"

namespace routing_replay {
inline namespace wire {

// Bytes of one element; 0 for kUnspecified and for numbers that are no dtype.
int32_t DTypeBytes(DType dtype);

// Writes `count` little-endian elements of `dtype` at `from` (any alignment) as `id_bytes` (1 or 2) bytes each to `to`,
// and gives the largest value taken as unsigned, so that a negative element is larger than every id. Elements that do
// not fit are written as something; the caller compares the result with E. Fastest instructions of this CPU, chosen at
// run time.
uint64_t NarrowIds(DType dtype, const uint8_t* from, int64_t count, int32_t id_bytes, uint8_t* to);

// The element at `index`, sign kept.
int64_t ElementAt(DType dtype, const uint8_t* from, int64_t index);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_NARROW_H_
