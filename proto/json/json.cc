#include "proto/json/json.h"

#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

// Stores the JSON value in `value`. Returns what is wrong with it, or "" if nothing is.
template <typename Int>
std::string Get(const nlohmann::json& json, Int& value) {
  const bool fits = json.is_number_unsigned() ? std::in_range<Int>(json.get<uint64_t>())
                                              : json.is_number_integer() && std::in_range<Int>(json.get<int64_t>());
  if (!fits)
    return absl::StrCat(std::is_signed_v<Int> ? "must be a " : "must be an unsigned ", 8 * sizeof(Int), "-bit integer");
  value = json.get<Int>();
  return "";
}

std::string Get(const nlohmann::json& json, bool& value) {
  if (!json.is_boolean()) return "must be true or false";
  value = json.get<bool>();
  return "";
}

std::string Get(const nlohmann::json& json, std::string& value) {
  if (!json.is_string()) return "must be a string";
  value = json.get<std::string>();
  return "";
}

template <typename T>
std::string Get(const nlohmann::json& json, std::optional<T>& value) {
  if (json.is_null()) return "";
  return Get(json, value.emplace());
}

std::string Get(const nlohmann::json& json, RowRange& range) {
  const bool good =
      json.is_array() && json.size() == 2 && Get(json[0], range.begin).empty() && Get(json[1], range.end).empty();
  return good ? "" : "must be a list of [begin, end]";
}

std::string Get(const nlohmann::json& json, TokenCheck& check) {
  const bool good =
      json.is_array() && json.size() == 2 && Get(json[0], check.rows).empty() && Get(json[1], check.crc32c).empty();
  return good ? "" : "must be a list of [rows, CRC32C]";
}

std::string Get(const nlohmann::json& json, WeightSpan& span) {
  const bool good = json.is_array() && json.size() == 4 && Get(json[0], span.rows.begin).empty() &&
                    Get(json[1], span.rows.end).empty() && Get(json[2], span.version).empty() &&
                    Get(json[3], span.label).empty();
  return good ? "" : "must be a list of [begin, end, version, label]";
}

template <typename T>
std::string Get(const nlohmann::json& json, std::vector<T>& value) {
  if (!json.is_array()) return "must be a list";
  std::vector<T> list(json.size());
  for (size_t i = 0; i < list.size(); ++i) {
    if (std::string wrong = Get(json[i], list[i]); !wrong.empty()) return wrong;
  }
  value = std::move(list);
  return "";
}

}  // namespace

JsonObject::JsonObject(const Json& json, absl::string_view path) : json_(json), path_(path) {
  if (!json.is_object()) Fail("", "must be an object");
}

const JsonObject::Json* JsonObject::Find(const char* key) {
  known_.insert(key);
  if (!json_.is_object()) return nullptr;
  const auto found = json_.find(key);
  return found == json_.end() ? nullptr : &*found;
}

template <typename T>
void JsonObject::Read(const char* key, T& value) {
  const Json* json = Find(key);
  if (json == nullptr) return;
  if (const std::string wrong = Get(*json, value); !wrong.empty()) Fail(key, wrong);
}
template void JsonObject::Read(const char*, int32_t&);
template void JsonObject::Read(const char*, int64_t&);
template void JsonObject::Read(const char*, uint32_t&);
template void JsonObject::Read(const char*, uint64_t&);
template void JsonObject::Read(const char*, bool&);
template void JsonObject::Read(const char*, std::string&);
template void JsonObject::Read(const char*, std::optional<int32_t>&);
template void JsonObject::Read(const char*, std::optional<int64_t>&);
template void JsonObject::Read(const char*, std::vector<int32_t>&);
template void JsonObject::Read(const char*, std::vector<int64_t>&);
template void JsonObject::Read(const char*, std::vector<RowRange>&);
template void JsonObject::Read(const char*, std::vector<TokenCheck>&);
template void JsonObject::Read(const char*, std::vector<WeightSpan>&);

void JsonObject::ReadOneOrMany(const char* key, std::vector<int32_t>& value) {
  const Json* json = Find(key);
  if (json == nullptr || json->is_array()) return Read(key, value);
  value.assign(1, 0);
  Read(key, value[0]);
}

void JsonObject::Require(const char* key) {
  if (Find(key) == nullptr) Fail(key, "is missing");
}

std::string JsonObject::PathOf(absl::string_view key) const {
  if (path_.empty()) return key.empty() ? "the description" : std::string(key);
  return key.empty() ? path_ : absl::StrCat(path_, ".", key);
}

void JsonObject::Fail(absl::string_view key, absl::string_view what) {
  if (status_.ok()) status_ = Invalid(PathOf(key), what);
}

absl::Status JsonObject::status() const {
  if (!status_.ok()) return status_;
  for (const auto& [key, value] : json_.items()) {
    if (known_.count(key) == 0) return Invalid(PathOf(key), "unknown field");
  }
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, absl::string_view field) {
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& error) {
    return Invalid(field, absl::StrCat("is not valid JSON: error at byte ", error.byte, " of ", text.size()));
  } catch (const nlohmann::json::exception&) {
    return Invalid(field, "is not JSON");
  }
}

std::string DumpJson(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

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
  RR_RETURN_IF_ERROR(object.status());
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

nlohmann::json RangesToJson(absl::Span<const RowRange> ranges) {
  nlohmann::json json = nlohmann::json::array();
  for (const RowRange range : ranges) json.push_back({range.begin, range.end});
  return json;
}

}  // namespace wire
}  // namespace routing_replay
