// Cuts: any (layers x rows) of a block, in storage encoding, without decoding.
#ifndef PROTO_WIRE_BLOCK_CUT_H_
#define PROTO_WIRE_BLOCK_CUT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/block/block.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {
inline namespace wire {

// DATA_LOSS naming the layer if the plane's bytes do not match its stored CRC32C.
absl::Status VerifyPlane(const Geometry& geometry, const BlockView& block, int32_t ordinal);

// Writes rows `rows` (absolute, non-empty, inside block.rows) of layer `ordinal` to `out` and returns the CRC32C of
// what it wrote. `out` must have exactly geometry.cut_bytes(ordinal, rows.begin - block.rows.begin, rows.size(), codec)
// bytes. The cut starts at the byte of its first bit; PACKED bits outside the cut are zero. The whole plane is verified
// against its stored CRC first: if it does not match, DATA_LOSS names the layer and `out` is untouched.
absl::StatusOr<uint32_t> CutPlane(const Geometry& geometry, const BlockView& block, int32_t ordinal, RowRange rows,
                                  absl::Span<uint8_t> out);

// Decodes `rows` rows of one layer from a cut (or a plane: bit_offset 0) to ids of geometry.layer(ordinal).id_bytes()
// bytes each, [rows][K] little-endian. `cut` and `out` must have the exact sizes. Ids are not checked.
void DecodeCut(const Geometry& geometry, int32_t ordinal, Codec codec, int32_t bit_offset, int64_t rows,
               absl::Span<const uint8_t> cut, absl::Span<uint8_t> out);

// Returns `codec`, or RAW if a block of `rows` rows would not be smaller in `codec`.
Codec SmallerCodec(const Geometry& geometry, int64_t rows, Codec codec);

// Encodes `rows` rows of one layer, given as DecodeCut writes them, as a plane. The sizes must be exact, and every id
// must be below its layer's E.
void EncodePlane(const Geometry& geometry, int32_t ordinal, Codec codec, int64_t rows, absl::Span<const uint8_t> ids,
                 absl::Span<uint8_t> plane);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_BLOCK_CUT_H_
