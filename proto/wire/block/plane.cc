#include "routing_replay/wire/plane.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "proto/wire/block/cut.h"
#include "proto/wire/block/id_check.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

absl::Status Invalid(Reason reason, absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, what, {.reason = reason});
}

absl::Status CheckArguments(const Geometry& geometry, int32_t ordinal, Codec codec, int32_t bit_offset, int64_t rows) {
  if (ordinal < 0 || ordinal >= geometry.num_moe_layers()) {
    return Invalid(Reason::kField, absl::StrCat("there is no MoE ordinal ", ordinal));
  }
  if (codec != Codec::kRaw && codec != Codec::kPacked) return Invalid(Reason::kField, "unknown codec");
  if (rows < 0 || rows > kMaxRows) return Invalid(Reason::kField, absl::StrCat(rows, " rows"));
  if (bit_offset < 0 || bit_offset > (codec == Codec::kRaw ? 0 : 7)) {
    return Invalid(Reason::kField, absl::StrCat("bit offset ", bit_offset));
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(size_t encoded, int64_t expected_encoded, size_t ids, int64_t expected_ids) {
  if (encoded != static_cast<size_t>(expected_encoded)) {
    return Invalid(Reason::kLength, absl::StrCat(encoded, " encoded bytes, not ", expected_encoded));
  }
  if (ids == static_cast<size_t>(expected_ids)) return absl::OkStatus();
  return Invalid(Reason::kLength, absl::StrCat(ids, " bytes of ids, not ", expected_ids));
}

}  // namespace

absl::Status PackPlane(const Geometry& geometry, int32_t ordinal, Codec codec, int64_t rows,
                       absl::Span<const uint8_t> ids, absl::Span<uint8_t> plane) {
  if (absl::Status status = CheckArguments(geometry, ordinal, codec, 0, rows); !status.ok()) return status;
  absl::Status sizes = CheckSizes(plane.size(), geometry.plane_bytes(ordinal, rows, codec), ids.size(),
                                  geometry.plane_bytes(ordinal, rows, Codec::kRaw));
  if (!sizes.ok()) return sizes;
  const LayerRouting& layer = geometry.layer(ordinal);
  if (const auto fault = FindIdFault(layer, ids, rows, /*duplicates=*/false)) {
    ErrorDetail detail{.reason = Reason::kIdRange};
    detail.row = fault->row;
    detail.layer = layer.layer_id;
    return MakeError(absl::StatusCode::kInvalidArgument,
                     absl::StrCat("row ", fault->row, ", layer ", layer.layer_id, ": expert id ", fault->id,
                                  " is not in [0, ", layer.num_experts, ")"),
                     detail);
  }
  EncodePlane(geometry, ordinal, codec, rows, ids, plane);
  return absl::OkStatus();
}

absl::Status UnpackCut(const Geometry& geometry, int32_t ordinal, Codec codec, int32_t bit_offset, int64_t rows,
                       absl::Span<const uint8_t> cut, absl::Span<uint8_t> ids) {
  if (absl::Status status = CheckArguments(geometry, ordinal, codec, bit_offset, rows); !status.ok()) return status;
  absl::Status sizes = CheckSizes(cut.size(), geometry.cut_bytes_at(ordinal, bit_offset, rows, codec), ids.size(),
                                  geometry.plane_bytes(ordinal, rows, Codec::kRaw));
  if (!sizes.ok()) return sizes;
  DecodeCut(geometry, ordinal, codec, bit_offset, rows, cut, ids);
  return absl::OkStatus();
}

}  // namespace routing_replay
