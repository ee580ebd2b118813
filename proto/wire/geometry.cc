#include "routing_replay/wire/geometry.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

absl::Status InvalidGeometry(absl::string_view field, absl::string_view what, std::optional<int32_t> layer = {}) {
  return Invalid({.reason = Reason::kField, .field = absl::StrCat("geometry.", field), .layer = layer}, what);
}

absl::Status CheckLayerIds(const Geometry::Options& options) {
  if (options.num_layers < 1 || options.num_layers > kMaxLayers) {
    return InvalidGeometry("num_layers", absl::StrCat(options.num_layers, " is not in 1 … ", kMaxLayers));
  }
  const auto& ids = options.moe_layer_ids;
  if (ids.empty() || ids.size() > kMaxMoeLayers) {
    return InvalidGeometry("moe_layer_ids", absl::StrCat("has ", ids.size(), " layers, not 1 … ", kMaxMoeLayers));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= options.num_layers) {
      return InvalidGeometry("moe_layer_ids",
                             absl::StrCat("layer ", ids[i], " is not in [0, ", options.num_layers, ")"), ids[i]);
    }
    if (i > 0 && ids[i] <= ids[i - 1]) {
      return InvalidGeometry("moe_layer_ids", absl::StrCat("layer ", ids[i], " is not above layer ", ids[i - 1]),
                             ids[i]);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPerLayer(absl::string_view field, size_t values, size_t layers) {
  if (values == 1 || values == layers) return absl::OkStatus();
  return InvalidGeometry(field, absl::StrCat("has ", values, " values, not 1 or one per MoE layer (", layers, ")"));
}

}  // namespace

const char* CodecName(Codec codec) { return codec == Codec::kPacked ? "PACKED" : "RAW"; }

absl::StatusOr<Geometry> Geometry::Create(const Options& options) {
  const size_t layers = options.moe_layer_ids.size();
  for (const absl::Status& status :
       {CheckLayerIds(options), CheckPerLayer("num_experts", options.num_experts.size(), layers),
        CheckPerLayer("top_k", options.top_k.size(), layers)}) {
    if (!status.ok()) return status;
  }
  Geometry g;
  g.num_layers_ = options.num_layers;
  g.ordinal_of_layer_.assign(options.num_layers, -1);
  for (size_t i = 0; i < layers; ++i) {
    const LayerRouting layer{.layer_id = options.moe_layer_ids[i],
                             .num_experts = options.num_experts[options.num_experts.size() == 1 ? 0 : i],
                             .top_k = options.top_k[options.top_k.size() == 1 ? 0 : i]};
    if (layer.num_experts < 1 || layer.num_experts > kMaxExperts) {
      return InvalidGeometry(
          "num_experts", absl::StrCat(layer.num_experts, " of layer ", layer.layer_id, " is not in 1 … ", kMaxExperts),
          layer.layer_id);
    }
    const int32_t max_k = std::min(kMaxTopK, layer.num_experts);
    if (layer.top_k < 1 || layer.top_k > max_k) {
      return InvalidGeometry("top_k", absl::StrCat(layer.top_k, " of layer ", layer.layer_id, " is not in 1 … ", max_k),
                             layer.layer_id);
    }
    g.ordinal_of_layer_[layer.layer_id] = static_cast<int32_t>(i);
    g.ids_per_row_ += layer.top_k;
    g.raw_row_bytes_ += static_cast<int64_t>(layer.top_k) * layer.id_bytes();
    g.max_top_k_ = std::max(g.max_top_k_, layer.top_k);
    g.max_id_bytes_ = std::max(g.max_id_bytes_, layer.id_bytes());
    g.layers_.push_back(layer);
    g.uniform_ = g.uniform_ && layer.num_experts == g.layers_[0].num_experts && layer.top_k == g.layers_[0].top_k;
  }
  return g;
}

Geometry Geometry::Uniform(int32_t num_layers, int32_t num_experts, int32_t top_k) {
  Options options{.num_layers = num_layers, .moe_layer_ids = {}, .num_experts = {num_experts}, .top_k = {top_k}};
  for (int32_t i = 0; i < num_layers; ++i) options.moe_layer_ids.push_back(i);
  auto geometry = Create(options);
  if (!geometry.ok()) {
    std::fprintf(stderr, "Geometry::Uniform: %s\n", geometry.status().ToString().c_str());
    std::abort();
  }
  return *std::move(geometry);
}

std::optional<int32_t> Geometry::FindOrdinal(int32_t layer_id) const {
  if (layer_id < 0 || layer_id >= num_layers_ || ordinal_of_layer_[layer_id] < 0) return std::nullopt;
  return ordinal_of_layer_[layer_id];
}

std::optional<int64_t> Geometry::array_ids(int64_t rows) const {
  int64_t ids = 0;
  if (rows < 0 || __builtin_mul_overflow(rows, int64_t{num_moe_layers()} * max_top_k_, &ids)) return std::nullopt;
  return ids;
}

int32_t Geometry::id_bits(int32_t ordinal, Codec codec) const {
  const LayerRouting& l = layers_[ordinal];
  if (codec == Codec::kRaw) return 8 * l.id_bytes();
  return std::max<int32_t>(1, std::bit_width(static_cast<uint32_t>(l.num_experts - 1)));
}

int64_t Geometry::row_bits(int32_t ordinal, Codec codec) const {
  return static_cast<int64_t>(layers_[ordinal].top_k) * id_bits(ordinal, codec);
}

int64_t Geometry::plane_bytes(int32_t ordinal, int64_t rows, Codec codec) const {
  return (rows * row_bits(ordinal, codec) + 7) / 8;
}

int64_t Geometry::plane_offset(int32_t ordinal, int64_t rows, Codec codec) const {
  if (uniform_) return ordinal * plane_bytes(0, rows, codec);
  int64_t offset = 0;
  for (int32_t i = 0; i < ordinal; ++i) offset += plane_bytes(i, rows, codec);
  return offset;
}

int64_t Geometry::cut_bytes(int32_t ordinal, int64_t row, int64_t rows, Codec codec) const {
  return cut_bytes_at(ordinal, cut_bit_offset(ordinal, row, codec), rows, codec);
}

int64_t Geometry::cut_bytes_at(int32_t ordinal, int32_t bit_offset, int64_t rows, Codec codec) const {
  return (bit_offset + rows * row_bits(ordinal, codec) + 7) / 8;
}

int32_t Geometry::cut_bit_offset(int32_t ordinal, int64_t row, Codec codec) const {
  return static_cast<int32_t>(row * row_bits(ordinal, codec) % 8);
}

Codec Geometry::default_codec() const {
  const int64_t raw = block_bytes(kDefaultBlockRows, Codec::kRaw);
  const int64_t packed = block_bytes(kDefaultBlockRows, Codec::kPacked);
  return packed * 4 <= raw * 3 ? Codec::kPacked : Codec::kRaw;
}

uint64_t Geometry::fingerprint() const {
  // Hashes a canonical text, so that struct layout and byte order of the machine do not matter.
  std::string text = absl::StrCat("routing-geometry-1;", num_layers_);
  for (const LayerRouting& l : layers_) absl::StrAppend(&text, ";", l.layer_id, ",", l.num_experts, ",", l.top_k);
  return XXH64(text.data(), text.size(), 0);
}

std::string Geometry::DebugString() const {
  const std::string shape = uniform_ ? absl::StrCat("E ", layers_[0].num_experts, ", K ", layers_[0].top_k)
                                     : std::string("E and K per layer");
  return absl::StrCat(num_moe_layers(), " MoE layers of ", num_layers_, ", ", shape);
}

}  // namespace routing_replay
