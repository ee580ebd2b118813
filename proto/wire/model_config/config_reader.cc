#include "proto/wire/model_config/config_reader.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/model_config/invalid_config.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {
inline namespace wire {

std::string Listed(Keys keys) {
  std::string list;
  for (size_t i = 0; i < keys.size(); ++i) {
    absl::StrAppend(&list, i == 0 ? "" : i + 1 < keys.size() ? ", " : " or ", keys[i]);
  }
  return list;
}

bool ConfigReader::Has(const char* key) const {
  const auto found = config_.find(key);
  return found != config_.end() && !found->is_null();
}

std::string ConfigReader::PathOf(absl::string_view key) const {
  return path_.empty() ? std::string(key) : absl::StrCat(path_, ".", key);
}

void ConfigReader::FailAt(const std::string& where, absl::string_view what) {
  status_.Update(InvalidConfig(where, what));
}

void ConfigReader::Fail(absl::string_view key, absl::string_view what) { FailAt(PathOf(key), what); }

const ConfigReader::Json* ConfigReader::Find(const char* fact, Keys keys) {
  const Json* value = nullptr;
  const char* name = nullptr;
  for (const char* key : keys) {
    if (!Has(key)) continue;
    const Json& found = config_.at(key);
    if (value != nullptr && *value != found) {
      Fail(key, absl::StrCat("contradicts ", PathOf(name)));
      return nullptr;
    }
    if (value == nullptr) name = key;
    value = &found;
  }
  if (value != nullptr) sources_[fact] = PathOf(name);
  return value;
}

std::optional<int64_t> ConfigReader::IntOf(const Json& value, absl::string_view where) {
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{std::numeric_limits<int32_t>::max()});
  const int64_t number = fits ? value.get<int64_t>() : 0;
  if (!fits || number < std::numeric_limits<int32_t>::min() || number > std::numeric_limits<int32_t>::max()) {
    FailAt(std::string(where), "is not a 32-bit integer");
    return std::nullopt;
  }
  return number;
}

std::optional<int64_t> ConfigReader::Int(const char* fact, Keys keys) {
  const Json* value = Find(fact, keys);
  return value == nullptr ? std::nullopt : IntOf(*value, Where(fact));
}

std::optional<double> ConfigReader::Number(const char* fact, Keys keys) {
  const Json* value = Find(fact, keys);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    FailAt(Where(fact), "is not a number");
    return std::nullopt;
  }
  return value->get<double>();
}

std::optional<bool> ConfigReader::Flag(const char* fact, Keys keys) {
  const Json* value = Find(fact, keys);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    FailAt(Where(fact), "is not true or false");
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<std::string> ConfigReader::Text(const char* fact, Keys keys) {
  const Json* value = Find(fact, keys);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    FailAt(Where(fact), "is not a text");
    return std::nullopt;
  }
  return value->get<std::string>();
}

std::optional<std::vector<int64_t>> ConfigReader::Ints(const char* fact, Keys keys) {
  const Json* value = Find(fact, keys);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array() || value->size() > kMaxLayers) {
    FailAt(Where(fact), absl::StrCat("is not a list of at most ", kMaxLayers));
    return std::nullopt;
  }
  std::vector<int64_t> list;
  for (const Json& item : *value) {
    // Flags may be written as booleans.
    const auto number = item.is_boolean() ? std::optional<int64_t>(item.get<bool>()) : IntOf(item, Where(fact));
    if (!number.has_value()) return std::nullopt;
    list.push_back(*number);
  }
  return list;
}

std::optional<std::vector<std::string>> ConfigReader::Texts(const char* fact, Keys keys) {
  const Json* value = Find(fact, keys);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> list;
  bool good = value->is_array() && value->size() <= kMaxLayers;
  for (size_t i = 0; good && i < value->size(); ++i) {
    good = (*value)[i].is_string();
    if (good) list.push_back((*value)[i].get<std::string>());
  }
  if (!good) {
    FailAt(Where(fact), absl::StrCat("is not a list of at most ", kMaxLayers, " texts"));
    return std::nullopt;
  }
  return list;
}

std::optional<std::vector<int64_t>> ConfigReader::IntOrInts(const char* fact, Keys keys) {
  const Json* value = Find(fact, keys);
  if (value == nullptr) return std::nullopt;
  if (value->is_array()) return Ints(fact, keys);
  const auto number = IntOf(*value, Where(fact));
  if (!number.has_value()) return std::nullopt;
  return std::vector<int64_t>{*number};
}

}  // namespace wire
}  // namespace routing_replay
