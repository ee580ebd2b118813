#include "proto/json/object_form.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/json/json_object.h"
#include "proto/wire/payload/text_form.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {
inline namespace wire {
namespace {

using nlohmann::json;

absl::StatusOr<std::vector<int64_t>> ShapeFrom(const json& value, size_t axes) {
  const auto is_axis = [](const json& axis) { return axis.is_number_integer() && axis >= 0 && axis <= kMaxRows; };
  if (!value.is_array() || value.size() != axes || !std::all_of(value.begin(), value.end(), is_axis)) {
    return Invalid(Reason::kShape, "append.tensor.shape",
                   absl::StrCat(DumpJson(value), " is not ", axes == 3 ? "[rows, layers, K]" : "[layers, K]"));
  }
  return value.get<std::vector<int64_t>>();
}

absl::StatusOr<DType> DTypeOf(ObjectDialect dialect, const json& object) {
  const auto found = object.find("dtype");
  if (found == object.end() || found->is_null()) {
    if (dialect == ObjectDialect::kPrimeRl) return DType::kU8;
    if (dialect == ObjectDialect::kSgLang) return DType::kI32;
    return Invalid(Reason::kDType, "append.tensor.dtype", "is missing");
  }
  if (!found->is_string()) return Invalid(Reason::kDType, "append.tensor.dtype", "is no text");
  const auto dtype = DTypeFromName(found->get<std::string>());
  if (!dtype.ok()) return dtype.status();
  const bool narrow = *dtype == DType::kU8 || *dtype == DType::kI32;
  if (dialect == ObjectDialect::kSkyRl && !narrow && *dtype != DType::kI16) {
    return Invalid(Reason::kDType, "append.tensor.dtype", "is not uint8, int16 or int32");
  }
  if (dialect == ObjectDialect::kSgLang && !narrow && *dtype != DType::kU16) {
    return Invalid(Reason::kDType, "append.tensor.dtype", "is not uint8, uint16 or int32");
  }
  return dtype;
}

}  // namespace

absl::StatusOr<ObjectForm> ObjectFormFromJson(ObjectDialect dialect, absl::string_view text) {
  auto value = ParseJson(text, "append.tensor");
  if (!value.ok()) return value.status();
  if (value->is_array()) *value = json{{"shape", *value}};
  if (!value->is_object()) return Invalid(Reason::kField, "append.tensor", "is not an object");
  if (dialect == ObjectDialect::kMsSwift && value->value("__ndarray__", json()) != true) {
    return Invalid(Reason::kField, "append.tensor.__ndarray__", "is not true");
  }
  auto shape = ShapeFrom(value->value("shape", json()), dialect == ObjectDialect::kSgLang ? 2 : 3);
  if (!shape.ok()) return shape.status();
  const auto dtype = DTypeOf(dialect, *value);
  if (!dtype.ok()) return dtype.status();
  ObjectForm form;
  form.tensor = {.encoding = Encoding::kBase64, .dtype = *dtype, .shape = *std::move(shape)};
  const json start = value->value("start", json());
  if (!start.is_null()) {
    if (!start.is_number_integer() || start < 0 || start > kMaxRows) {
      return Invalid(Reason::kField, "append.row_start", absl::StrCat(DumpJson(start), " is not a row"));
    }
    form.start = start.get<int64_t>();
  }
  return form;
}

}  // namespace wire
}  // namespace routing_replay
