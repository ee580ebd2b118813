// What engines and their wrappers put around ids: texts with a head, JSON objects that describe the ids beside them,
// and JSON bodies that hold routes. Found without a copy of the ids.
#ifndef PROTO_JSON_ENGINE_FORMS_H_
#define PROTO_JSON_ENGINE_FORMS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/payload/tensor_view.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay {
inline namespace wire {

// A payload inside a text.
struct TextForm {
  TensorDescription tensor;
  absl::Span<const uint8_t> data;  // Of the text that was opened.
};

// NeMo-RL's "nrlre1:<dtype>:<rows>x<layers>x<K>:<base64>", dtype int8, int16 or int32. INVALID_ARGUMENT, field
// "payload": kEncoding for another text, kDType, kShape for axes that are not three plain decimal numbers. The base64
// is not looked at.
absl::StatusOr<TextForm> OpenNrlre1(absl::Span<const uint8_t> text);

// NumPy's name of an integer type: "uint8", "int8", "uint16", "int16", "int32", "int64". INVALID_ARGUMENT (kDType,
// field "append.tensor.dtype").
absl::StatusOr<DType> DTypeFromName(absl::string_view name);

// SkyRL's wire has one dtype for given ids: uint8 up to 255, int16 up to 32767, else int32, and none below 0.
// INVALID_ARGUMENT: kIdRange for negative ids, kDType for another dtype.
absl::Status CheckNarrowestDType(const TensorView& tensor);

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

// A text of the body.
struct RouteText {
  // Keys and indexes from the root to it, for example "choices", 0, "routed_experts", "data".
  std::vector<std::variant<std::string, size_t>> path;
  size_t begin = 0;  // Of its characters, without the quotes. They stand for themselves: none is escaped.
  size_t size = 0;
};

// The texts of the fields "routed_experts" and "prompt_routed_experts" of the root, of the items of a root that is a
// list, of "choices", and of "meta_info", "sglext" and "sgl_ext" at any of these places; in order. Where such
// a field is an object its "data" is meant, where it is a list its texts. Other kinds, and texts with escapes, are left
// out. INVALID_ARGUMENT (kEncoding, field "body") for what is no JSON of an object or a list; only structure and UTF-8
// are checked, not numbers and words. Thread-safe.
absl::StatusOr<std::vector<RouteText>> FindRoutes(absl::Span<const uint8_t> body);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_JSON_ENGINE_FORMS_H_
