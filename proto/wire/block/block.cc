#include "proto/wire/block/block.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/wire/block/bits.h"
#include "proto/wire/block/id_check.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

// INVALID_ARGUMENT about the blocks of an append.
absl::Status Rejected(ErrorDetail detail, absl::string_view what) {
  detail.field = "append.blocks";
  return Invalid(detail, what);
}

absl::Status Describe(const BlockView& block, const LayerRouting& layer, const IdFault& fault) {
  const int64_t row = block.rows.begin + fault.row;
  return Rejected({.reason = Reason::kIdRange, .row = row, .layer = layer.layer_id},
                  absl::StrCat("row ", row, ", layer ", layer.layer_id, ": expert id ", fault.id, " is not in [0, ",
                               layer.num_experts, ")"));
}

// Checks the bits after the last id of a PACKED plane.
bool PaddingIsZero(absl::Span<const uint8_t> plane, int64_t used_bits) {
  return plane.empty() || used_bits % 8 == 0 || plane.back() >> (used_bits % 8) == 0;
}

// DATA_LOSS naming the layer if the plane's bytes do not match its stored CRC32C.
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

// Writes one layer of the rows `part`, encoded with `codec`, to `to` from bit `to_bit` on.
absl::Status AppendPart(const Geometry& geometry, int32_t ordinal, const BlockRows& part, Codec codec, uint8_t* to,
                        int64_t to_bit) {
  const int64_t row = part.rows.begin - part.block.rows.begin;
  const int64_t rows = part.rows.size();
  Buffer cut(geometry.cut_bytes(ordinal, row, rows, part.block.codec));
  RR_RETURN_IF_ERROR(CutPlane(geometry, part.block, ordinal, part.rows, cut.span()).status());
  int32_t bit_offset = geometry.cut_bit_offset(ordinal, row, part.block.codec);
  if (part.block.codec != codec) {
    Buffer ids(geometry.plane_bytes(ordinal, rows, Codec::kRaw));
    DecodeCut(geometry, ordinal, part.block.codec, bit_offset, rows, cut.span(), ids.span());
    cut = Buffer(geometry.plane_bytes(ordinal, rows, codec));
    EncodePlane(geometry, ordinal, codec, rows, ids.span(), cut.span());
    bit_offset = 0;
  }
  CopyBits(cut.data(), bit_offset, to, to_bit, rows * geometry.row_bits(ordinal, codec));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckShape(const Geometry& geometry, const BlockView& block, int32_t block_rows) {
  if (block.codec != Codec::kRaw && block.codec != Codec::kPacked) {
    return Rejected({.reason = Reason::kField}, "unknown codec");
  }
  if (block.rows.begin < 0 || block.rows.empty() ||
      block.rows.begin / block_rows != (block.rows.end - 1) / block_rows) {
    return Rejected({.reason = Reason::kField},
                    absl::StrCat("rows ", ToString(block.rows), " are not inside one window of ", block_rows, " rows"));
  }
  if (block.plane_crc32c.size() != static_cast<size_t>(geometry.num_moe_layers())) {
    return Rejected({.reason = Reason::kLength},
                    absl::StrCat("block ", ToString(block.rows), " has ", block.plane_crc32c.size(), " CRCs for ",
                                 geometry.num_moe_layers(), " MoE layers"));
  }
  const auto expected = static_cast<size_t>(geometry.block_bytes(block.rows.size(), block.codec));
  if (block.bytes.size() == expected) return absl::OkStatus();
  return Rejected({.reason = Reason::kLength}, absl::StrCat("block ", ToString(block.rows), " has ", block.bytes.size(),
                                                            " bytes, expected ", expected));
}

absl::Status CheckCrc(const Geometry& geometry, const BlockView& block) {
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    if (Crc32c(block.plane(geometry, i)) == block.plane_crc32c[i]) continue;
    const int32_t layer = geometry.layer(i).layer_id;
    return Rejected({.reason = Reason::kChecksum, .row = block.rows.begin, .layer = layer},
                    absl::StrCat("block ", ToString(block.rows), ", layer ", layer, ": CRC32C does not match"));
  }
  return absl::OkStatus();
}

absl::Status CheckIds(const Geometry& geometry, const BlockView& block) {
  Buffer scratch;  // Decoded ids of one PACKED plane.
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    const LayerRouting& layer = geometry.layer(i);
    const absl::Span<const uint8_t> plane = block.plane(geometry, i);
    absl::Span<const uint8_t> ids = plane;
    if (block.codec != Codec::kRaw) {
      const auto size = static_cast<size_t>(geometry.plane_bytes(i, block.rows.size(), Codec::kRaw));
      if (scratch.size() < size) scratch = Buffer(size);
      DecodeCut(geometry, i, block.codec, 0, block.rows.size(), plane, scratch.span().first(size));
      ids = scratch.span().first(size);
    }
    if (const auto fault = FindIdFault(layer, ids, block.rows.size())) {
      return Describe(block, layer, *fault);
    }
    if (PaddingIsZero(plane, block.rows.size() * geometry.row_bits(i, block.codec))) continue;
    return Rejected(
        {.reason = Reason::kEncoding, .row = block.rows.begin, .layer = layer.layer_id},
        absl::StrCat("block ", ToString(block.rows), ", layer ", layer.layer_id, ": padding bits are not zero"));
  }
  return absl::OkStatus();
}

void ComputeCrc(const Geometry& geometry, Block& block) {
  block.plane_crc32c.resize(geometry.num_moe_layers());
  const BlockView view = block.view();
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) block.plane_crc32c[i] = Crc32c(view.plane(geometry, i));
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

absl::StatusOr<Block> Merge(const Geometry& geometry, absl::Span<const BlockRows> parts, Codec codec) {
  Block block;
  block.rows = {parts.front().rows.begin, parts.back().rows.end};
  block.codec = SmallerCodec(geometry, block.rows.size(), codec);
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

RowDifferences CountDifferingRows(const Geometry& geometry, const BlockRows& a, const BlockRows& b) {
  const int64_t rows = a.rows.size();
  std::vector<bool> differs(rows, false);
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    const auto decoded = [&](const BlockRows& part) {
      const int64_t row = part.rows.begin - part.block.rows.begin;
      const Codec codec = part.block.codec;
      const auto cut = part.block.plane(geometry, i)
                           .subspan(row * geometry.row_bits(i, codec) / 8, geometry.cut_bytes(i, row, rows, codec));
      Buffer ids(geometry.plane_bytes(i, rows, Codec::kRaw));
      DecodeCut(geometry, i, codec, geometry.cut_bit_offset(i, row, codec), rows, cut, ids.span());
      return ids;
    };
    const Buffer of_a = decoded(a), of_b = decoded(b);
    if (of_a.span() == of_b.span()) continue;
    const int64_t row_bytes = of_a.size() / rows;
    for (int64_t r = 0; r < rows; ++r) {
      if (std::memcmp(of_a.data() + r * row_bytes, of_b.data() + r * row_bytes, row_bytes) != 0) differs[r] = true;
    }
  }
  const auto first = std::find(differs.begin(), differs.end(), true);
  if (first == differs.end()) return {};
  return {std::count(first, differs.end(), true), a.rows.begin + (first - differs.begin())};
}

}  // namespace wire
}  // namespace routing_replay
