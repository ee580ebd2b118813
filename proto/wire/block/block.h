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
// Checks that every id is below its layer's E and that PACKED padding bits are zero; with `duplicates`, also that no id
// occurs twice in a row. INVALID_ARGUMENT (kIdRange, kDuplicateId, kEncoding) names row and layer.
absl::Status CheckIds(const Geometry& geometry, const BlockView& block, bool duplicates);

// Fills plane_crc32c from the bytes.
void ComputeCrc(const Geometry& geometry, Block& block);
// The same rows in another codec, with new CRCs. Returns RAW where PACKED would not be smaller.
Block Transcode(const Geometry& geometry, const BlockView& block, Codec codec);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_BLOCK_BLOCK_H_
