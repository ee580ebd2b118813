// Objects by which wrappers of engines describe the ids beside them.
#ifndef PROTO_JSON_OBJECT_FORM_H_
#define PROTO_JSON_OBJECT_FORM_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay {
inline namespace wire {

// Who writes the object, and so which fields must be there and what dtypes there are.
enum class ObjectDialect : uint8_t {
  kAny = 1,      // {shape, dtype, start?}; every dtype
  kPrimeRl = 2,  // {shape, start?, dtype?}; without dtype uint8
  kSkyRl = 3,    // {shape, dtype}; uint8, int16 or int32
  kMsSwift = 4,  // {shape, dtype, __ndarray__: true}; every dtype
  kSgLang = 5,   // {shape: [layers, K] of a row, dtype?}; uint8, uint16 or int32, without dtype int32
};

struct ObjectForm {
  TensorDescription tensor;  // BASE64.
  int64_t start = 0;         // Absolute row of the first row.
};

// The object without its "data", as JSON. A list [rows, layers, K] is taken for {shape} in dialects that need no dtype.
// Fields that the dialect does not know are skipped. INVALID_ARGUMENT naming the field: kShape for a shape that is not
// three whole numbers, or two (no booleans, no 3.0), kDType for a dtype that is not of the dialect, kField for the
// rest.
absl::StatusOr<ObjectForm> ObjectFormFromJson(ObjectDialect dialect, absl::string_view text);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_JSON_OBJECT_FORM_H_
