// Values of the wire as fields of JSON objects, in the forms that the C APIs document.
#ifndef PROTO_JSON_WIRE_JSON_H_
#define PROTO_JSON_WIRE_JSON_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/json/json_object.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample_id.h"
#include "routing_replay/wire/sample_state.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay {
inline namespace wire {

// All of them: INVALID_ARGUMENT (kField) naming the field that is of the wrong kind. An absent field changes nothing.

// [[begin, end], …]
absl::Status ReadRanges(JsonObject& object, const char* key, std::vector<RowRange>& ranges);
// [[rows, crc32c], …]
absl::Status ReadTokenChecks(JsonObject& object, const char* key, std::vector<TokenCheck>& checks);
// "producer": "rollout" or "trainer"; what is wrong is told by the object's status().
void ReadProducer(JsonObject& object, Producer& producer);

// "U8", "I8", … as below; "" for none.
const char* DTypeName(DType dtype);

// {"encoding": "RAW" | "NPY" | "BASE64" | "BASE64_NPY", "compression": "NONE" | "ZSTD", "raw_size": 0,
//  "dtype": "U8" | "I8" | "U16" | "I16" | "I32" | "I64", "shape": [rows, layers, K],
//  "layer_basis": "ALL_LAYERS" | "MOE_LAYERS" | "EXPLICIT", "layer_ids": [0, …]}
// `path` names the object in errors.
absl::StatusOr<TensorDescription> TensorFromJson(absl::string_view text, absl::string_view path = "append.tensor");

// A tensor and which slots of its first axis are meant; absent: all.
struct TakenTensor {
  TensorDescription description;
  std::optional<RowRange> take;
  bool ids_and_weights = false;
};
// As above, and "take": [begin, end], "ids_and_weights": false.
absl::StatusOr<TakenTensor> TakenTensorFromJson(absl::string_view text);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_JSON_WIRE_JSON_H_
