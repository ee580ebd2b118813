#include "proto/wire/block/block.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/block/cut.h"
#include "proto/wire/block/id_check.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

absl::Status Invalid(Reason reason, absl::string_view what, std::optional<int32_t> layer = {},
                     std::optional<int64_t> row = {}) {
  ErrorDetail detail{.reason = reason, .field = "append.blocks"};
  detail.layer = layer;
  detail.row = row;
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("append.blocks: ", what), detail);
}

absl::Status Describe(const BlockView& block, const LayerRouting& layer, const IdFault& fault) {
  const int64_t row = block.rows.begin + fault.row;
  const std::string where = absl::StrCat("row ", row, ", layer ", layer.layer_id, ": expert id ", fault.id);
  if (fault.kind == IdFault::Kind::kDuplicate) {
    return Invalid(Reason::kDuplicateId, absl::StrCat(where, " occurs twice"), layer.layer_id, row);
  }
  return Invalid(Reason::kIdRange, absl::StrCat(where, " is not in [0, ", layer.num_experts, ")"), layer.layer_id, row);
}

// Checks the bits after the last id of a PACKED plane.
bool PaddingIsZero(absl::Span<const uint8_t> plane, int64_t used_bits) {
  return plane.empty() || used_bits % 8 == 0 || plane.back() >> (used_bits % 8) == 0;
}

}  // namespace

absl::Status CheckShape(const Geometry& geometry, const BlockView& block, int32_t block_rows) {
  if (block.codec != Codec::kRaw && block.codec != Codec::kPacked) return Invalid(Reason::kField, "unknown codec");
  if (block.rows.begin < 0 || block.rows.empty() ||
      block.rows.begin / block_rows != (block.rows.end - 1) / block_rows) {
    return Invalid(Reason::kField,
                   absl::StrCat("rows ", ToString(block.rows), " are not inside one window of ", block_rows, " rows"));
  }
  if (block.plane_crc32c.size() != static_cast<size_t>(geometry.num_moe_layers())) {
    return Invalid(Reason::kLength, absl::StrCat("block ", ToString(block.rows), " has ", block.plane_crc32c.size(),
                                                 " CRCs for ", geometry.num_moe_layers(), " MoE layers"));
  }
  const auto expected = static_cast<size_t>(geometry.block_bytes(block.rows.size(), block.codec));
  if (block.bytes.size() == expected) return absl::OkStatus();
  return Invalid(Reason::kLength, absl::StrCat("block ", ToString(block.rows), " has ", block.bytes.size(),
                                               " bytes, expected ", expected));
}

absl::Status CheckCrc(const Geometry& geometry, const BlockView& block) {
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    if (Crc32c(block.plane(geometry, i)) == block.plane_crc32c[i]) continue;
    const int32_t layer = geometry.layer(i).layer_id;
    return Invalid(Reason::kChecksum,
                   absl::StrCat("block ", ToString(block.rows), ", layer ", layer, ": CRC32C does not match"), layer,
                   block.rows.begin);
  }
  return absl::OkStatus();
}

absl::Status CheckIds(const Geometry& geometry, const BlockView& block, bool duplicates) {
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
    if (const auto fault = FindIdFault(layer, ids, block.rows.size(), duplicates)) {
      return Describe(block, layer, *fault);
    }
    if (PaddingIsZero(plane, block.rows.size() * geometry.row_bits(i, block.codec))) continue;
    return Invalid(
        Reason::kEncoding,
        absl::StrCat("block ", ToString(block.rows), ", layer ", layer.layer_id, ": padding bits are not zero"),
        layer.layer_id, block.rows.begin);
  }
  return absl::OkStatus();
}

void ComputeCrc(const Geometry& geometry, Block& block) {
  block.plane_crc32c.resize(geometry.num_moe_layers());
  const BlockView view = block.view();
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) block.plane_crc32c[i] = Crc32c(view.plane(geometry, i));
}

Block Transcode(const Geometry& geometry, const BlockView& block, Codec codec) {
  Block out;
  out.rows = block.rows;
  const int64_t rows = block.rows.size();
  out.codec = SmallerCodec(geometry, rows, codec);
  out.bytes = Buffer(geometry.block_bytes(rows, out.codec));
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    const LayerRouting& layer = geometry.layer(i);
    Buffer ids(rows * layer.top_k * layer.id_bytes());
    DecodeCut(geometry, i, block.codec, 0, rows, block.plane(geometry, i), ids.span());
    EncodePlane(
        geometry, i, out.codec, rows, ids.span(),
        out.bytes.span().subspan(geometry.plane_offset(i, rows, out.codec), geometry.plane_bytes(i, rows, out.codec)));
  }
  ComputeCrc(geometry, out);
  return out;
}

}  // namespace wire
}  // namespace routing_replay
