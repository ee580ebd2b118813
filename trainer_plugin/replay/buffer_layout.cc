#include "routing_replay/trainer/buffer_layout.h"

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::trainer {
namespace {

absl::Status Refuse(absl::string_view field, absl::string_view what, std::optional<int32_t> layer = {}) {
  ErrorDetail detail{.reason = Reason::kField, .field = absl::StrCat("layout.", field)};
  detail.layer = layer;
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("layout.", field, ": ", what), detail);
}

absl::Status CheckOrdinals(const Geometry& geometry, absl::Span<const int32_t> ordinals, int32_t ep_size) {
  std::vector<bool> seen(geometry.num_moe_layers(), false);
  for (int32_t ordinal : ordinals) {
    if (ordinal < 0 || ordinal >= geometry.num_moe_layers()) {
      return Refuse("ordinals", absl::StrCat(ordinal, " is not in [0, ", geometry.num_moe_layers(), ")"));
    }
    const LayerRouting& layer = geometry.layer(ordinal);
    if (seen[ordinal]) return Refuse("ordinals", absl::StrCat(ordinal, " stands twice"), layer.layer_id);
    seen[ordinal] = true;
    if (layer.num_experts % ep_size != 0) {
      return Refuse(
          "ep_size",
          absl::StrCat(ep_size, " does not divide the ", layer.num_experts, " experts of layer ", layer.layer_id),
          layer.layer_id);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BufferLayout> BufferLayout::Create(const Geometry& geometry, const Options& options) {
  if (options.rows < 0 || options.rows > kMaxLocalRows) {
    return Refuse("rows", absl::StrCat(options.rows, " is not in 0 … ", kMaxLocalRows));
  }
  if (options.ep_size < 1) return Refuse("ep_size", absl::StrCat(options.ep_size, " is below 1"));
  if (auto s = CheckOrdinals(geometry, options.ordinals, options.ep_size); !s.ok()) return s;
  BufferLayout layout(geometry);
  layout.ordinals_ = options.ordinals;
  layout.rows_ = options.rows;
  layout.ep_size_ = options.ep_size;
  layout.offsets_.resize(layout.ordinals_.size());
  for (int32_t id_bytes : {2, 1}) {
    for (int32_t slot = 0; slot < layout.num_layers(); ++slot) {
      if (layout.layer(slot).id_bytes() != id_bytes) continue;
      layout.offsets_[slot] = layout.bytes_;
      layout.bytes_ += layout.slab_bytes(slot);
    }
  }
  return layout;
}

int64_t BufferLayout::row_bytes(int32_t slot) const { return geometry_.plane_bytes(ordinals_[slot], 1, Codec::kRaw); }

absl::Span<const uint8_t> BufferLayout::slab(absl::Span<const uint8_t> buffer, int32_t slot) const {
  return buffer.subspan(slab_offset(slot), slab_bytes(slot));
}

absl::Span<uint8_t> BufferLayout::slab(absl::Span<uint8_t> buffer, int32_t slot) const {
  return buffer.subspan(slab_offset(slot), slab_bytes(slot));
}

}  // namespace routing_replay::trainer
