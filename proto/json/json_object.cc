#include "proto/json/json_object.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
JsonObject::JsonObject(const Json& json, absl::string_view path) : json_(json), path_(path) {
  if (!json.is_object()) Fail("", "is not an object");
}

const JsonObject::Json* JsonObject::Find(const char* key) {
  known_.insert(key);
  if (!json_.is_object()) return nullptr;
  const auto found = json_.find(key);
  return found == json_.end() ? nullptr : &*found;
}

const JsonObject::Json* JsonObject::FindValue(const char* key) {
  const Json* value = Find(key);
  return value != nullptr && !value->is_null() ? value : nullptr;
}

template <typename Int>
void JsonObject::ReadInt(const char* key, const Json& json, Int& value) {
  // Unsigned numbers above the range of int64 are not representable either.
  const bool fits = json.is_number_integer() && (!json.is_number_unsigned() ||
                                                 json.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  const int64_t number = fits ? json.get<int64_t>() : 0;
  if (!fits || number < std::numeric_limits<Int>::min() || number > std::numeric_limits<Int>::max()) {
    Fail(key, absl::StrCat("is not a ", 8 * sizeof(Int), "-bit integer"));
    return;
  }
  value = static_cast<Int>(number);
}

template <typename Int>
void JsonObject::ReadList(const char* key, std::vector<Int>& value) {
  const Json* json = Find(key);
  if (json == nullptr) return;
  if (!json->is_array()) return Fail(key, "is not a list");
  std::vector<Int> list(json->size());
  for (size_t i = 0; i < list.size(); ++i) ReadInt(key, (*json)[i], list[i]);
  value = std::move(list);
}

void JsonObject::Read(const char* key, int32_t& value) {
  if (const Json* json = Find(key)) ReadInt(key, *json, value);
}

void JsonObject::Read(const char* key, int64_t& value) {
  if (const Json* json = Find(key)) ReadInt(key, *json, value);
}

void JsonObject::Read(const char* key, uint64_t& value) {
  const Json* json = Find(key);
  if (json == nullptr) return;
  const bool fits = json->is_number_unsigned() || (json->is_number_integer() && json->get<int64_t>() >= 0);
  if (!fits) return Fail(key, "is not an unsigned 64-bit integer");
  value = json->get<uint64_t>();
}

void JsonObject::Read(const char* key, bool& value) {
  const Json* json = Find(key);
  if (json == nullptr) return;
  if (!json->is_boolean()) return Fail(key, "is not true or false");
  value = json->get<bool>();
}

void JsonObject::Read(const char* key, std::string& value) {
  const Json* json = Find(key);
  if (json == nullptr) return;
  if (!json->is_string()) return Fail(key, "is not a string");
  value = json->get<std::string>();
}

void JsonObject::Read(const char* key, std::optional<int32_t>& value) {
  const Json* json = Find(key);
  if (json != nullptr && !json->is_null()) ReadInt(key, *json, value.emplace());
}

void JsonObject::Read(const char* key, std::optional<int64_t>& value) {
  const Json* json = Find(key);
  if (json != nullptr && !json->is_null()) ReadInt(key, *json, value.emplace());
}

void JsonObject::Read(const char* key, std::vector<int32_t>& value) { ReadList(key, value); }
void JsonObject::Read(const char* key, std::vector<int64_t>& value) { ReadList(key, value); }

void JsonObject::ReadOneOrMany(const char* key, std::vector<int32_t>& value) {
  const Json* json = Find(key);
  if (json == nullptr || json->is_array()) return ReadList(key, value);
  value.assign(1, 0);
  ReadInt(key, *json, value[0]);
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
    return Invalid(field, absl::StrCat("is not JSON at byte ", error.byte, " of ", text.size()));
  } catch (const nlohmann::json::exception&) {
    return Invalid(field, "is not JSON");
  }
}

std::string DumpJson(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace wire
}  // namespace routing_replay
