// Blocks: the storage unit. Consecutive rows of one sample, layer-major inside, at most one window of block_rows rows.
//
//   block = plane of MoE layer 0 | plane of MoE layer 1 | …          plane = [rows][K], starts on a byte
//
// FORMAT.md is the specification; sizes come from Geometry. Everything here is pure and thread-safe.
#ifndef PROTO_WIRE_BLOCK_BLOCK_H_
#define PROTO_WIRE_BLOCK_BLOCK_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/buffer.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"

namespace routing_replay {
inline namespace wire {

// A view of a block that is owned elsewhere. Valid while the owner lives.
struct BlockView {
  RowRange rows;  // Absolute.
  Codec codec = Codec::kRaw;
  absl::Span<const uint32_t> plane_crc32c;  // One per MoE layer, over the plane's bytes as stored.
  absl::Span<const uint8_t> bytes;          // geometry.block_bytes(rows.size(), codec)

  absl::Span<const uint8_t> plane(const Geometry& geometry, int32_t ordinal) const {
    return bytes.subspan(geometry.plane_offset(ordinal, rows.size(), codec),
                         geometry.plane_bytes(ordinal, rows.size(), codec));
  }
};

// A block that owns its bytes. Move-only.
struct Block {
  RowRange rows;
  Codec codec = Codec::kRaw;
  std::vector<uint32_t> plane_crc32c;
  Buffer bytes;

  BlockView view() const { return {rows, codec, plane_crc32c, bytes.span()}; }
};

// Some rows of a block: the input of a merge or a comparison.
struct BlockRows {
  BlockView block;
  RowRange rows;  // Absolute, inside block.rows.
};

// Checks that lengths, CRC count and codec match the geometry and `block_rows`, and that the rows lie in one window.
// INVALID_ARGUMENT (kLength, kField) otherwise. Reads no payload byte.
absl::Status CheckShape(const Geometry& geometry, const BlockView& block, int32_t block_rows);
// Checks every plane's CRC. INVALID_ARGUMENT (kChecksum) names the first layer that does not match.
absl::Status CheckCrc(const Geometry& geometry, const BlockView& block);
// Checks that every id is below its layer's E and that PACKED padding bits are zero. INVALID_ARGUMENT (kIdRange,
// kEncoding) names row and layer.
absl::Status CheckIds(const Geometry& geometry, const BlockView& block);

// Fills plane_crc32c from the bytes.
void ComputeCrc(const Geometry& geometry, Block& block);

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

// Merges `parts` into one block. The parts must lie in one window, and their rows must follow each other without a gap.
// The block has the codec `codec`, or RAW if PACKED would not make it smaller. Every plane is checked against its CRC
// first: DATA_LOSS names row and layer. The bytes of the result do not depend on how the rows were split into parts.
absl::StatusOr<Block> Merge(const Geometry& geometry, absl::Span<const BlockRows> parts, Codec codec);

struct RowDifferences {
  int64_t rows = 0;
  int64_t first_row = 0;  // Absolute; set if rows > 0.
};

// How many rows differ in at least one id of any layer. `a` and `b` must have the same absolute rows. Compares ids, not
// bytes, so that the codecs may differ.
RowDifferences CountDifferingRows(const Geometry& geometry, const BlockRows& a, const BlockRows& b);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_BLOCK_BLOCK_H_
