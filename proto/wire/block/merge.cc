#include "proto/wire/block/merge.h"

#include <cstring>
#include <vector>

#include "proto/wire/block/bits.h"
#include "proto/wire/block/cut.h"
#include "proto/wire/status_macros.h"

namespace routing_replay {
inline namespace wire {
namespace {

// Appends the part's rows of one layer at bit `to_bit` of `to`, in `codec`.
absl::Status AppendPart(const Geometry& geometry, int32_t ordinal, const BlockRows& part, Codec codec, uint8_t* to,
                        int64_t to_bit) {
  const int64_t row = part.rows.begin - part.block.rows.begin;
  const int64_t rows = part.rows.size();
  Buffer cut(geometry.cut_bytes(ordinal, row, rows, part.block.codec));
  if (auto crc = CutPlane(geometry, part.block, ordinal, part.rows, cut.span()); !crc.ok()) return crc.status();
  const int32_t bit_offset = geometry.cut_bit_offset(ordinal, row, part.block.codec);
  if (part.block.codec == codec) {
    CopyBits(cut.data(), bit_offset, to, to_bit, rows * geometry.row_bits(ordinal, codec));
    return absl::OkStatus();
  }
  const LayerRouting& layer = geometry.layer(ordinal);
  Buffer ids(rows * layer.top_k * layer.id_bytes());
  DecodeCut(geometry, ordinal, part.block.codec, bit_offset, rows, cut.span(), ids.span());
  if (codec == Codec::kRaw) {
    std::memcpy(to + to_bit / 8, ids.data(), ids.size());
    return absl::OkStatus();
  }
  Buffer packed(geometry.plane_bytes(ordinal, rows, codec));
  PackIds(ids.data(), layer.id_bytes(), geometry.id_bits(ordinal, codec), rows * layer.top_k, packed.data());
  CopyBits(packed.data(), 0, to, to_bit, rows * geometry.row_bits(ordinal, codec));
  return absl::OkStatus();
}

Codec CodecFor(const Geometry& geometry, int64_t rows, Codec wanted) {
  const bool shrinks = geometry.block_bytes(rows, wanted) < geometry.block_bytes(rows, Codec::kRaw);
  return shrinks ? wanted : Codec::kRaw;
}

}  // namespace

absl::StatusOr<Block> Merge(const Geometry& geometry, absl::Span<const BlockRows> parts, Codec codec) {
  Block block;
  block.rows = {parts.front().rows.begin, parts.back().rows.end};
  block.codec = CodecFor(geometry, block.rows.size(), codec);
  block.bytes = Buffer(geometry.block_bytes(block.rows.size(), block.codec));
  std::memset(block.bytes.data(), 0, block.bytes.size());
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    uint8_t* plane = block.bytes.data() + geometry.plane_offset(i, block.rows.size(), block.codec);
    for (const BlockRows& part : parts) {
      const int64_t bit = (part.rows.begin - block.rows.begin) * geometry.row_bits(i, block.codec);
      RR_RETURN_IF_ERROR(AppendPart(geometry, i, part, block.codec, plane, bit));
    }
  }
  ComputeCrc(geometry, block);
  return block;
}

int64_t CountDifferingRows(const Geometry& geometry, const BlockRows& a, const BlockRows& b) {
  const int64_t rows = a.rows.size();
  std::vector<bool> differs(rows, false);
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    const LayerRouting& layer = geometry.layer(i);
    const int64_t row_bytes = static_cast<int64_t>(layer.top_k) * layer.id_bytes();
    Buffer ids[2] = {Buffer(rows * row_bytes), Buffer(rows * row_bytes)};
    for (int side = 0; side < 2; ++side) {
      const BlockRows& part = side == 0 ? a : b;
      const int64_t row = part.rows.begin - part.block.rows.begin;
      const Codec codec = part.block.codec;
      const int64_t first_byte = row * geometry.row_bits(i, codec) / 8;
      DecodeCut(geometry, i, codec, geometry.cut_bit_offset(i, row, codec), rows,
                part.block.plane(geometry, i).subspan(first_byte, geometry.cut_bytes(i, row, rows, codec)),
                ids[side].span());
    }
    if (std::memcmp(ids[0].data(), ids[1].data(), ids[0].size()) == 0) continue;
    for (int64_t r = 0; r < rows; ++r) {
      if (std::memcmp(ids[0].data() + r * row_bytes, ids[1].data() + r * row_bytes, row_bytes) != 0) differs[r] = true;
    }
  }
  return std::count(differs.begin(), differs.end(), true);
}

}  // namespace wire
}  // namespace routing_replay
