// The ids of one layer and their bytes in storage encoding: for whoever takes the pieces of a read, or a rank's
// staging, apart without the library's own realign.
//
// Decoded ids are [rows][K] of layer.id_bytes() bytes each, little-endian. Everything here is pure and thread-safe, and
// writes nothing when the status is not OK.
#ifndef ROUTING_REPLAY_WIRE_PLANE_H_
#define ROUTING_REPLAY_WIRE_PLANE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {

// Encodes `rows` rows of MoE layer `ordinal`: `plane` has geometry.plane_bytes(ordinal, rows, codec) bytes.
// INVALID_ARGUMENT: kField for an ordinal, a codec or rows that cannot be, kLength for spans of another size, kIdRange
// (naming layer, and row within `ids`) for an id that is not in [0, E).
absl::Status PackPlane(const Geometry& geometry, int32_t ordinal, Codec codec, int64_t rows,
                       absl::Span<const uint8_t> ids, absl::Span<uint8_t> plane);

// Decodes a cut of `rows` rows whose first id lies at `bit_offset` (0 … 7, 0 for RAW) of its first byte; a plane is a
// cut at 0. `cut` has geometry.cut_bytes_at(ordinal, bit_offset, rows, codec) bytes. Ids are not checked: a cut that
// fits its CRC holds what was checked at ingest. INVALID_ARGUMENT (kField, kLength) as above.
absl::Status UnpackCut(const Geometry& geometry, int32_t ordinal, Codec codec, int32_t bit_offset, int64_t rows,
                       absl::Span<const uint8_t> cut, absl::Span<uint8_t> ids);

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_WIRE_PLANE_H_
