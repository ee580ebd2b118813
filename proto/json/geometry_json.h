// A routing geometry as JSON:
//
//   {"num_layers": 27, "moe_layers": [1, 2, …, 26], "num_experts": 64, "top_k": 6}
//
// moe_layers absent: all layers; num_experts, top_k: one number, or one per MoE layer.
#ifndef PROTO_JSON_GEOMETRY_JSON_H_
#define PROTO_JSON_GEOMETRY_JSON_H_

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {
inline namespace wire {

// `path` names the object in messages. INVALID_ARGUMENT (kField) naming a field that is missing, unknown or of the
// wrong kind; the geometry's own rules are Geometry::Create's.
absl::StatusOr<Geometry::Options> GeometryOptionsFromJson(const nlohmann::json& json, absl::string_view path);
nlohmann::json GeometryToJson(const Geometry& geometry);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_JSON_GEOMETRY_JSON_H_
