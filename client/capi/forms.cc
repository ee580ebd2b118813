// What engines emit: shapes of undecoded payloads, and which rows they hold.
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "client/capi/objects.h"
#include "proto/json/object_form.h"
#include "proto/json/routes_in_json.h"
#include "proto/json/rows_file.h"
#include "proto/json/wire_json.h"
#include "proto/wire/payload/output_weights.h"
#include "proto/wire/payload/payload_shape.h"
#include "proto/wire/payload/row_account.h"
#include "proto/wire/payload/tensor_payload.h"
#include "proto/wire/payload/tensor_view.h"
#include "proto/wire/payload/text_form.h"
#include "routing_replay/wire/error_detail.h"

using namespace routing_replay;          // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;    // NOLINT(build/namespaces)
using namespace routing_replay::client;  // NOLINT(build/namespaces)

namespace {

// The description with what every text form has: base64, a dtype and a shape.
nlohmann::json Described(const TensorDescription& tensor) {
  return {{"encoding", "BASE64"}, {"dtype", DTypeName(tensor.dtype)}, {"shape", tensor.shape}};
}

absl::StatusOr<ObjectDialect> DialectFrom(absl::string_view name) {
  static constexpr struct {
    const char* name;
    ObjectDialect dialect;
  } kNames[] = {{"any", ObjectDialect::kAny},
                {"prime_rl", ObjectDialect::kPrimeRl},
                {"skyrl", ObjectDialect::kSkyRl},
                {"ms_swift", ObjectDialect::kMsSwift},
                {"sglang", ObjectDialect::kSgLang}};
  for (const auto& known : kNames) {
    if (name == known.name) return known.dialect;
  }
  return Invalid(Reason::kField, "dialect",
                 absl::StrCat("\"", name, "\" is none of any, prime_rl, skyrl, ms_swift, sglang"));
}

// A version of an engine: a number, or a text that may have one.
absl::Status ReadVersion(const nlohmann::json& version, const nlohmann::json* numbers, const std::string& field,
                         VersionedTokens& span) {
  if (version.is_number_integer() && version >= 0 && version <= INT64_MAX) {
    span.version = version;
    return absl::OkStatus();
  }
  if (!version.is_string()) return Invalid(Reason::kField, field, "is neither a number of weights nor a text");
  span.label = version;
  span.version = VersionNumber(span.label);
  if (numbers == nullptr || !numbers->contains(span.label)) return absl::OkStatus();
  const nlohmann::json& number = (*numbers)[span.label];
  if (!number.is_number_integer()) return Invalid(Reason::kField, field, "has a number that is none");
  span.version = number;
  return absl::OkStatus();
}

absl::Status ReadVersionedTokens(const nlohmann::json& list, const nlohmann::json* numbers,
                                 std::vector<VersionedTokens>& spans) {
  if (!list.is_array()) return Invalid(Reason::kField, "weight_versions", "is not a list");
  if (numbers != nullptr && !numbers->is_object()) return Invalid(Reason::kField, "numbers", "is not an object");
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string path = absl::StrCat("weight_versions[", i, "]");
    if (!list[i].is_object()) return Invalid(Reason::kField, path, "is not an object");
    VersionedTokens span;
    JsonObject object(list[i], path);
    for (const char* key : {"version", "start", "end"}) object.Require(key);
    object.Read("start", span.begin);
    object.Read("end", span.end);
    const nlohmann::json* version = object.Find("version");
    absl::Status status = object.status();
    if (status.ok()) status = ReadVersion(*version, numbers, path + ".version", span);
    if (!status.ok()) return status;
    spans.push_back(std::move(span));
  }
  return absl::OkStatus();
}

}  // namespace

rr_error* rr_account_rows(const char* json, size_t size, rr_bytes** account) {
  return Guard([&]() -> absl::Status {
    const auto value = ParseJson(Text(json, size), "claim");
    if (!value.ok()) return value.status();
    RowClaim claim;
    JsonObject object(*value, "");
    for (const char* key : {"prompt_tokens", "output_tokens", "rows"}) object.Require(key);
    object.Read("prompt_tokens", claim.prompt_tokens);
    object.Read("output_tokens", claim.output_tokens);
    object.Read("start", claim.start);
    object.Read("rows", claim.rows);
    object.Read("short_rows", {{"refuse", ShortRows::kRefuse}, {"missing_at_front", ShortRows::kMissingAtFront}},
                claim.short_rows);
    if (absl::Status status = object.status(); !status.ok()) return status;
    const auto rows = AccountRows(claim);
    if (!rows.ok()) return rows.status();
    return Give({{"row_start", rows->row_start},
                 {"take", {rows->take.begin, rows->take.end}},
                 {"missing_rows", rows->missing_rows},
                 {"surplus_rows", rows->surplus_rows}},
                account);
  });
}

rr_error* rr_payload_shape(const char* tensor, size_t tensor_size, const void* payload, size_t payload_size,
                           rr_bytes** shape) {
  return Guard([&]() -> absl::Status {
    const auto description = TensorFromJson(Text(tensor, tensor_size));
    if (!description.ok()) return description.status();
    const absl::Span<const uint8_t> bytes = Bytes(payload, payload_size);
    absl::StatusOr<TensorShape> found = TensorShape{description->dtype, {}};
    if (description->shape.size() == 2) {
      const auto rows = FlatRows(*description, description->shape[0], description->shape[1], bytes);
      if (!rows.ok()) return rows.status();
      found->axes = {*rows, description->shape[0], description->shape[1]};
    } else {
      found = PayloadShape(*description, bytes);
    }
    if (!found.ok()) return found.status();
    return Give({{"dtype", DTypeName(found->dtype)}, {"shape", found->axes}}, shape);
  });
}

rr_error* rr_output_weights(const char* json, size_t size, rr_bytes** weights) {
  return Guard([&]() -> absl::Status {
    const auto value = ParseJson(Text(json, size), "weight_versions");
    if (!value.ok()) return value.status();
    int64_t prompt_tokens = 0, output_tokens = 0, row_start = 0;
    JsonObject object(*value, "");
    for (const char* key : {"prompt_tokens", "output_tokens", "spans"}) object.Require(key);
    object.Read("prompt_tokens", prompt_tokens);
    object.Read("output_tokens", output_tokens);
    object.Read("row_start", row_start);
    const nlohmann::json* list = object.Find("spans");
    const nlohmann::json* numbers = object.Find("numbers");
    if (absl::Status status = object.status(); !status.ok()) return status;
    std::vector<VersionedTokens> spans;
    absl::Status status = ReadVersionedTokens(*list, numbers, spans);
    if (!status.ok()) return status;
    const auto rows = OutputWeights(spans, prompt_tokens, output_tokens, row_start);
    if (!rows.ok()) return rows.status();
    nlohmann::json found = nlohmann::json::array();
    for (const WeightSpan& span : *rows) found.push_back({span.rows.begin, span.rows.end, span.version, span.label});
    return Give(found, weights);
  });
}

rr_error* rr_open_nrlre1(const void* text, size_t size, rr_bytes** form) {
  return Guard([&]() -> absl::Status {
    const absl::Span<const uint8_t> bytes = Bytes(text, size);
    const auto opened = OpenNrlre1(bytes);
    if (!opened.ok()) return opened.status();
    const auto begin = static_cast<int64_t>(opened->data.data() - bytes.data());
    return Give({{"tensor", Described(opened->tensor)}, {"data", {begin, bytes.size()}}}, form);
  });
}

rr_error* rr_open_object(const char* dialect, size_t dialect_size, const char* json, size_t size, rr_bytes** form) {
  return Guard([&]() -> absl::Status {
    const auto known = DialectFrom(Text(dialect, dialect_size));
    if (!known.ok()) return known.status();
    const auto opened = ObjectFormFromJson(*known, Text(json, size));
    if (!opened.ok()) return opened.status();
    return Give({{"tensor", Described(opened->tensor)}, {"start", opened->start}}, form);
  });
}

rr_error* rr_check_narrowest(const char* tensor, size_t tensor_size, const void* payload, size_t payload_size) {
  return Guard([&]() -> absl::Status {
    const auto description = TensorFromJson(Text(tensor, tensor_size));
    if (!description.ok()) return description.status();
    const auto view = OpenTensor(*description, Bytes(payload, payload_size), DecodeOptions().max_payload_bytes);
    return view.ok() ? CheckNarrowestDType(*view) : view.status();
  });
}

rr_error* rr_open_rows_file(const void* file, size_t size, const char* name, size_t name_size, rr_bytes** form) {
  return Guard([&]() -> absl::Status {
    const absl::Span<const uint8_t> bytes = Bytes(file, size);
    const auto rows = OpenRowsFile(bytes, Text(name, name_size));
    if (!rows.ok()) return rows.status();
    const auto begin = static_cast<int64_t>(rows->payload.data() - bytes.data());
    nlohmann::json tensor = Described(rows->tensor);
    tensor["encoding"] = "RAW";
    return Give({{"tensor", std::move(tensor)}, {"data", {begin, begin + rows->payload.size()}}}, form);
  });
}

rr_error* rr_trace_sequences(const char* index, size_t index_size, const char* stem, size_t stem_size, int64_t rows,
                             rr_bytes** ranges) {
  return Guard([&]() -> absl::Status {
    const auto sequences = TraceSequences(Text(index, index_size), Text(stem, stem_size), rows);
    if (!sequences.ok()) return sequences.status();
    nlohmann::json list = nlohmann::json::array();
    for (const RowRange range : *sequences) list.push_back({range.begin, range.end});
    return Give(list, ranges);
  });
}

rr_error* rr_find_routes(const void* body, size_t size, rr_bytes** json) {
  return Guard([&]() -> absl::Status {
    const auto found = FindRoutes(Bytes(body, size));
    if (!found.ok()) return found.status();
    nlohmann::json list = nlohmann::json::array();
    for (const RouteText& text : *found) {
      nlohmann::json path = nlohmann::json::array();
      for (const auto& step : text.path) {
        std::visit([&path](const auto& key_or_index) { path.push_back(key_or_index); }, step);
      }
      list.push_back({{"path", std::move(path)}, {"span", {text.begin, text.begin + text.size}}});
    }
    return Give(list, json);
  });
}

rr_error* rr_decode_base85(const void* text, size_t size, rr_bytes** bytes) {
  return Guard([&]() -> absl::Status {
    const auto decoded = DecodeBase85(Bytes(text, size));
    if (!decoded.ok()) return decoded.status();
    return Give(std::string(reinterpret_cast<const char*>(decoded->data()), decoded->size()), bytes);
  });
}
