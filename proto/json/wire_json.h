// Values of the wire as JSON: geometries, statuses, ranges, tensors.
#ifndef PROTO_JSON_WIRE_JSON_H_
#define PROTO_JSON_WIRE_JSON_H_

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/json/json_object.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample_id.h"
#include "routing_replay/wire/sample_state.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay {
inline namespace wire {

// A geometry: {"num_layers": 27, "moe_layers": [1, 2, …, 26], "num_experts": 64, "top_k": 6}. moe_layers absent: all
// layers; num_experts, top_k: one number, or one per MoE layer.
// `path` names the object in messages. INVALID_ARGUMENT (kField) naming a field that is missing, unknown or of the
// wrong kind; the geometry's own rules are Geometry::Create's.
absl::StatusOr<Geometry::Options> GeometryOptionsFromJson(const nlohmann::json& json, absl::string_view path);
nlohmann::json GeometryToJson(const Geometry& geometry);

// A status, for those who cannot hold an absl::Status:
//
//   {"code": 3, "code_name": "INVALID_ARGUMENT", "message": "payload: …", "reason": "ID_RANGE", "field": "payload",
//    "sample": "math-7/0", "row": 12, "layer": 3, "committed_rows": 0, "revision": 0, "first_differing_block": 0,
//    "missing_rows": [[0, 4]], "retry_after_ms": 50}
//
// What follows the message is of the ErrorDetail; fields that are not set are absent.
nlohmann::json StatusToJson(const absl::Status& status);
// [[begin, end], …]
nlohmann::json RangesToJson(absl::Span<const RowRange> ranges);

// Fields of objects. All of them: INVALID_ARGUMENT (kField) naming the field that is of the wrong kind. An absent field
// changes nothing.

// [[begin, end], …]
absl::Status ReadRanges(JsonObject& object, const char* key, std::vector<RowRange>& ranges);
// [[rows, crc32c], …]
absl::Status ReadTokenChecks(JsonObject& object, const char* key, std::vector<TokenCheck>& checks);
// "producer": "rollout" or "trainer"; what is wrong is told by the object's status().
void ReadProducer(JsonObject& object, Producer& producer);

// {"encoding": "RAW" | "NPY" | "BASE64" | "BASE64_NPY", "compression": "NONE" | "ZSTD", "raw_size": 0,
//  "dtype": "U8" | "I8" | "U16" | "I16" | "I32" | "I64", "shape": [rows, layers, K],
//  "layer_basis": "ALL_LAYERS" | "MOE_LAYERS" | "EXPLICIT", "layer_ids": [0, …]}
// `path` names the object in errors.
absl::StatusOr<TensorDescription> TensorFromJson(absl::string_view text, absl::string_view path = "append.tensor");

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_JSON_WIRE_JSON_H_
