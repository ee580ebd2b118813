// Reads the fields of fields.h from JSON. Errors name fields as in the description.
#ifndef TRAINER_PLUGIN_LAYOUT_READ_FIELDS_H_
#define TRAINER_PLUGIN_LAYOUT_READ_FIELDS_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/json/json.h"
#include "trainer_plugin/layout/fields.h"

namespace routing_replay::trainer {

// Removes null fields of objects: null counts as absent.
nlohmann::json WithoutNulls(nlohmann::json json);

// Returns the field that a status names; "" if there is none.
std::string FieldOf(const absl::Status& status);
// Replaces the field's name in a status by its name in the description.
absl::Status WithField(const absl::Status& status, absl::string_view field);

// Reads a layout: the text form, or a list of stages, each a list of names. INVALID_ARGUMENT (kField, field
// "split.layout").
absl::StatusOr<PipelineLayout> PipelineLayoutFromJson(const nlohmann::json& json);

class FieldReader {
 public:
  explicit FieldReader(JsonObject& object) : object_(object) {}

  template <typename Value>
  void operator()(const char* name, Value& value) {
    if constexpr (std::is_enum_v<Value>) {
      object_.Read(name, ChoicesOf(value), value);
    } else {
      object_.Read(name, value);
    }
  }
  template <typename Value>
  void operator()(const char* name, Value& value, const Choices<Value>& choices) {
    object_.Read(name, choices, value);
  }
  // Bounds are checked by the code that uses the value.
  template <typename Value>
  void operator()(const char* name, Value& value, Bounds) {
    object_.Read(name, value);
  }
  void operator()(const char* name, bool& value, FlagOrFormat) {
    const nlohmann::json* json = object_.Find(name);
    if (json != nullptr && json->is_string()) {
      value = SkyRlFp8Enabled(json->get<std::string>());
    } else {
      object_.Read(name, value);
    }
  }
  void operator()(const char* name, std::optional<PipelineLayout>& value) {
    if (const nlohmann::json* json = object_.Find(name)) Take(PipelineLayoutFromJson(*json), value);
  }
  void operator()(const char* name, std::optional<HybridPattern>& value) {
    std::string text;
    object_.Read(name, text);
    if (object_.Find(name) != nullptr && object_.status().ok()) Take(ParseHybridPattern(text), value);
  }

  // Returns the error of the JSON object; if it has none, the first error of parsing a layout or a hybrid pattern.
  absl::Status status() const { return object_.status().ok() ? status_ : object_.status(); }

 private:
  template <typename Value>
  void Take(absl::StatusOr<Value> parsed, std::optional<Value>& value) {
    status_.Update(parsed.status());
    if (parsed.ok()) value = *std::move(parsed);
  }

  JsonObject& object_;
  absl::Status status_;
};

// Reads an object that may have only the fields of its struct; those in `required` must be present.
template <typename Struct>
absl::Status ReadFields(const nlohmann::json& json, absl::string_view path, Struct& of,
                        const char* required = nullptr) {
  JsonObject object(json, path);
  if (required != nullptr) object.Require(required);
  FieldReader reader(object);
  Fields(reader, of);
  return reader.status();
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_READ_FIELDS_H_
