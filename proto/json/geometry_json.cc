#include "proto/json/geometry_json.h"

#include <numeric>

#include "proto/json/json_object.h"

namespace routing_replay {
inline namespace wire {

absl::StatusOr<Geometry::Options> GeometryOptionsFromJson(const nlohmann::json& json, absl::string_view path) {
  Geometry::Options options;
  JsonObject object(json, path);
  for (const char* key : {"num_layers", "num_experts", "top_k"}) object.Require(key);
  object.Read("num_layers", options.num_layers);
  object.ReadOneOrMany("num_experts", options.num_experts);
  object.ReadOneOrMany("top_k", options.top_k);
  if (object.Find("moe_layers") != nullptr) {
    object.Read("moe_layers", options.moe_layer_ids);
  } else if (options.num_layers > 0 && options.num_layers <= kMaxLayers) {
    options.moe_layer_ids.resize(options.num_layers);
    std::iota(options.moe_layer_ids.begin(), options.moe_layer_ids.end(), 0);
  }
  if (absl::Status status = object.status(); !status.ok()) return status;
  return options;
}

nlohmann::json GeometryToJson(const Geometry& geometry) {
  nlohmann::json layers = nlohmann::json::array();
  nlohmann::json experts = nlohmann::json::array();
  nlohmann::json top_k = nlohmann::json::array();
  for (const LayerRouting& layer : geometry.layers()) {
    layers.push_back(layer.layer_id);
    experts.push_back(layer.num_experts);
    top_k.push_back(layer.top_k);
  }
  if (geometry.uniform()) {
    experts = experts[0];
    top_k = top_k[0];
  }
  return {{"num_layers", geometry.num_layers()},
          {"moe_layers", std::move(layers)},
          {"num_experts", std::move(experts)},
          {"top_k", std::move(top_k)}};
}

}  // namespace wire
}  // namespace routing_replay
