#include "proto/wire/block/block.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/block/bits.h"
#include "proto/wire/block/cut.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

absl::Status Invalid(Reason reason, absl::string_view what, std::optional<int32_t> layer = {},
                     std::optional<int64_t> row = {}) {
  ErrorDetail detail{.reason = reason, .field = "append.blocks"};
  detail.layer = layer;
  detail.row = row;
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("append.blocks: ", what), detail);
}

int64_t IdAt(absl::Span<const uint8_t> ids, int id_bytes, int64_t i) {
  uint16_t id = 0;
  std::memcpy(&id, ids.data() + i * id_bytes, id_bytes);
  return id;
}

absl::Status CheckLayerIds(const BlockView& block, const LayerRouting& layer, absl::Span<const uint8_t> ids,
                           bool duplicates) {
  const int32_t k = layer.top_k;
  for (int64_t row = 0; row < block.rows.size(); ++row) {
    for (int32_t i = 0; i < k; ++i) {
      const int64_t id = IdAt(ids, layer.id_bytes(), row * k + i);
      if (id >= layer.num_experts) {
        return Invalid(Reason::kIdRange,
                       absl::StrCat("row ", block.rows.begin + row, ", layer ", layer.layer_id, ": expert id ", id,
                                    " is not in [0, ", layer.num_experts, ")"),
                       layer.layer_id, block.rows.begin + row);
      }
      for (int32_t j = 0; duplicates && j < i; ++j) {
        if (IdAt(ids, layer.id_bytes(), row * k + j) != id) continue;
        return Invalid(Reason::kDuplicateId,
                       absl::StrCat("row ", block.rows.begin + row, ", layer ", layer.layer_id, ": expert id ", id,
                                    " stands twice"),
                       layer.layer_id, block.rows.begin + row);
      }
    }
  }
  return absl::OkStatus();
}

// Bits behind the last id of a PACKED plane.
bool PaddingIsZero(absl::Span<const uint8_t> plane, int64_t used_bits) {
  return plane.empty() || used_bits % 8 == 0 || plane.back() >> (used_bits % 8) == 0;
}

}  // namespace

absl::Status CheckShape(const Geometry& geometry, const BlockView& block, int32_t block_rows) {
  if (block.codec != Codec::kRaw && block.codec != Codec::kPacked) return Invalid(Reason::kField, "unknown codec");
  if (block.rows.begin < 0 || block.rows.empty() || block.rows.size() > block_rows ||
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
  return Invalid(Reason::kLength,
                 absl::StrCat("block ", ToString(block.rows), " has ", block.bytes.size(), " bytes, not ", expected));
}

absl::Status CheckCrc(const Geometry& geometry, const BlockView& block) {
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    if (Crc32c(block.plane(geometry, i)) == block.plane_crc32c[i]) continue;
    const int32_t layer = geometry.layer(i).layer_id;
    return Invalid(Reason::kChecksum,
                   absl::StrCat("block ", ToString(block.rows), ", layer ", layer, ": CRC32C does not fit"), layer,
                   block.rows.begin);
  }
  return absl::OkStatus();
}

absl::Status CheckIds(const Geometry& geometry, const BlockView& block, bool duplicates) {
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    const LayerRouting& layer = geometry.layer(i);
    const absl::Span<const uint8_t> plane = block.plane(geometry, i);
    Buffer ids(block.rows.size() * layer.top_k * layer.id_bytes());
    DecodeCut(geometry, i, block.codec, 0, block.rows.size(), plane, ids.span());
    if (absl::Status status = CheckLayerIds(block, layer, ids.span(), duplicates); !status.ok()) return status;
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
  out.codec = geometry.block_bytes(rows, codec) < geometry.block_bytes(rows, Codec::kRaw) ? codec : Codec::kRaw;
  out.bytes = Buffer(geometry.block_bytes(rows, out.codec));
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    const LayerRouting& layer = geometry.layer(i);
    Buffer ids(rows * layer.top_k * layer.id_bytes());
    DecodeCut(geometry, i, block.codec, 0, rows, block.plane(geometry, i), ids.span());
    uint8_t* plane = out.bytes.data() + geometry.plane_offset(i, rows, out.codec);
    if (out.codec == Codec::kRaw) {
      std::memcpy(plane, ids.data(), ids.size());
    } else {
      PackIds(ids.data(), layer.id_bytes(), geometry.id_bits(i, out.codec), rows * layer.top_k, plane);
    }
  }
  ComputeCrc(geometry, out);
  return out;
}

}  // namespace routing_replay
