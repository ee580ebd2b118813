#include "proto/wire/block/cut.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/wire/block/bits.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {

absl::Status VerifyPlane(const Geometry& geometry, const BlockView& block, int32_t ordinal) {
  if (Crc32c(block.plane(geometry, ordinal)) == block.plane_crc32c[ordinal]) return absl::OkStatus();
  ErrorDetail detail{.reason = Reason::kChecksum};
  detail.layer = geometry.layer(ordinal).layer_id;
  detail.row = block.rows.begin;
  return MakeError(absl::StatusCode::kDataLoss,
                   absl::StrCat("block ", ToString(block.rows), ", layer ", *detail.layer,
                                ": stored bytes do not match their CRC32C"),
                   detail);
}

absl::StatusOr<uint32_t> CutPlane(const Geometry& geometry, const BlockView& block, int32_t ordinal, RowRange rows,
                                  absl::Span<uint8_t> out) {
  const absl::Span<const uint8_t> plane = block.plane(geometry, ordinal);
  RR_RETURN_IF_ERROR(VerifyPlane(geometry, block, ordinal));
  if (rows == block.rows) {
    std::memcpy(out.data(), plane.data(), plane.size());
    return block.plane_crc32c[ordinal];
  }
  const int64_t row_bits = geometry.row_bits(ordinal, block.codec);
  const int64_t first_bit = (rows.begin - block.rows.begin) * row_bits;
  const int64_t end_bit = (rows.end - block.rows.begin) * row_bits;
  std::memcpy(out.data(), plane.data() + first_bit / 8, out.size());
  out.front() &= static_cast<uint8_t>(0xFF << (first_bit % 8));
  if (end_bit % 8 != 0) out.back() &= static_cast<uint8_t>(0xFF >> (8 - end_bit % 8));
  return Crc32c(out);
}

void DecodeCut(const Geometry& geometry, int32_t ordinal, Codec codec, int32_t bit_offset, int64_t rows,
               absl::Span<const uint8_t> cut, absl::Span<uint8_t> out) {
  if (codec == Codec::kRaw) {
    if (!out.empty()) std::memcpy(out.data(), cut.data(), out.size());
    return;
  }
  const LayerRouting& layer = geometry.layer(ordinal);
  UnpackIds(cut, bit_offset, geometry.id_bits(ordinal, codec), rows * layer.top_k, layer.id_bytes(), out.data());
}

Codec SmallerCodec(const Geometry& geometry, int64_t rows, Codec codec) {
  return geometry.block_bytes(rows, codec) < geometry.block_bytes(rows, Codec::kRaw) ? codec : Codec::kRaw;
}

void EncodePlane(const Geometry& geometry, int32_t ordinal, Codec codec, int64_t rows, absl::Span<const uint8_t> ids,
                 absl::Span<uint8_t> plane) {
  if (codec == Codec::kRaw) {
    if (!ids.empty()) std::memcpy(plane.data(), ids.data(), ids.size());
    return;
  }
  const LayerRouting& layer = geometry.layer(ordinal);
  PackIds(ids.data(), layer.id_bytes(), geometry.id_bits(ordinal, codec), rows * layer.top_k, plane.data());
}

}  // namespace wire
}  // namespace routing_replay
