#include "proto/wire/payload/columns.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

absl::Status InvalidColumns(Reason reason, absl::string_view field, absl::string_view what,
                            std::optional<int32_t> layer = {}) {
  ErrorDetail detail{.reason = reason, .field = absl::StrCat("append.tensor.", field)};
  detail.layer = layer;
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(detail.field, ": ", what), detail);
}

absl::Status WrongAxis(const Geometry& geometry, int64_t layers, absl::string_view expected) {
  return InvalidColumns(Reason::kShape, "shape",
                        absl::StrCat("layer axis of ", layers, ", not ", expected, " (", geometry.DebugString(), ")"));
}

absl::StatusOr<std::vector<int32_t>> ExplicitColumns(const Geometry& geometry, const std::vector<int32_t>& layer_ids,
                                                     int64_t layers) {
  if (static_cast<int64_t>(layer_ids.size()) != layers) {
    return InvalidColumns(Reason::kShape, "layer_ids",
                          absl::StrCat(layer_ids.size(), " ids for a layer axis of ", layers));
  }
  std::vector<int32_t> columns(geometry.num_moe_layers(), -1);
  std::vector<bool> named(geometry.num_layers(), false);
  for (size_t column = 0; column < layer_ids.size(); ++column) {
    const int32_t id = layer_ids[column];
    if (id < 0 || id >= geometry.num_layers()) {
      return InvalidColumns(Reason::kField, "layer_ids",
                            absl::StrCat("layer ", id, " is not in [0, ", geometry.num_layers(), ")"), id);
    }
    if (named[id]) return InvalidColumns(Reason::kField, "layer_ids", absl::StrCat("layer ", id, " stands twice"), id);
    named[id] = true;
    if (const auto ordinal = geometry.FindOrdinal(id)) columns[*ordinal] = static_cast<int32_t>(column);
  }
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    const int32_t id = geometry.layer(i).layer_id;
    if (columns[i] < 0)
      return InvalidColumns(Reason::kField, "layer_ids", absl::StrCat("MoE layer ", id, " is missing"), id);
  }
  return columns;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> MoeColumns(const Geometry& geometry, const TensorDescription& description,
                                                int64_t layers) {
  const bool is_all = layers == geometry.num_layers();
  const bool is_moe = layers == geometry.num_moe_layers();
  LayerBasis basis = description.layer_basis;
  if (basis != LayerBasis::kExplicit && !description.layer_ids.empty()) {
    return InvalidColumns(Reason::kField, "layer_ids", "given without layer_basis EXPLICIT");
  }
  if (basis == LayerBasis::kUnspecified) {
    if (!is_all && !is_moe) return WrongAxis(geometry, layers, "all layers or all MoE layers");
    basis = is_all ? LayerBasis::kAllLayers : LayerBasis::kMoeLayers;
  }
  if (basis == LayerBasis::kExplicit) return ExplicitColumns(geometry, description.layer_ids, layers);
  std::vector<int32_t> columns(geometry.num_moe_layers());
  if (basis == LayerBasis::kMoeLayers) {
    if (!is_moe) return WrongAxis(geometry, layers, "all MoE layers");
    std::iota(columns.begin(), columns.end(), 0);
  } else {
    if (!is_all) return WrongAxis(geometry, layers, "all layers");
    for (size_t i = 0; i < columns.size(); ++i) columns[i] = geometry.layer(static_cast<int32_t>(i)).layer_id;
  }
  return columns;
}

}  // namespace wire
}  // namespace routing_replay
