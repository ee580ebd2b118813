// Reads JSON objects, in which unknown fields are errors, and converts geometries and ranges to and from JSON.
#ifndef PROTO_JSON_JSON_H_
#define PROTO_JSON_JSON_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay {
inline namespace wire {

// Reads the fields of one JSON object. Each Read function stores the field's value; if the field is absent, it leaves
// `value` unchanged. Call status() after the last Read: after an error, for example a field of the wrong kind, the
// values must not be used. Keeps a reference to `json`. Not thread-safe.
class JsonObject {
 public:
  using Json = nlohmann::json;

  // `path` names the object in messages; empty for the root.
  JsonObject(const Json& json, absl::string_view path);

  // Reads an integer, a boolean, a string, an optional integer (null counts as absent), or a list: of integers, of
  // ranges [begin, end], of token checks [rows, crc32c], or of weight spans [begin, end, version, label].
  template <typename T>
  void Read(const char* key, T& value);
  // Reads a list of integers; a single integer counts as a list of one.
  void ReadOneOrMany(const char* key, std::vector<int32_t>& value);
  // Reads a text that must be one of `names`.
  template <typename Enum>
  void Read(const char* key, const std::vector<std::pair<const char*, Enum>>& names, Enum& value);
  // The field's value, or null if it is absent.
  const Json* Find(const char* key);

  void Require(const char* key);
  std::string PathOf(absl::string_view key) const;
  // INVALID_ARGUMENT (kField) naming the first wrong, missing or unknown field; OK if there is none.
  absl::Status status() const;

 private:
  void Fail(absl::string_view key, absl::string_view what);

  const Json& json_;
  std::string path_;
  std::set<std::string> known_;
  absl::Status status_;
};

template <typename Enum>
void JsonObject::Read(const char* key, const std::vector<std::pair<const char*, Enum>>& names, Enum& value) {
  std::string name;
  Read(key, name);
  if (Find(key) == nullptr) return;
  std::string choices;
  for (const auto& [choice, meaning] : names) {
    if (name == choice) {
      value = meaning;
      return;
    }
    choices += choices.empty() ? choice : std::string(", ") + choice;
  }
  Fail(key, "must be one of " + choices);
}

// Parses `text`. INVALID_ARGUMENT (kField) naming `field` if it is not JSON.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, absl::string_view field);
// Writes `json` as one line; bytes that are not UTF-8 are replaced.
std::string DumpJson(const nlohmann::json& json);

// Reads {"num_layers": 27, "moe_layers": [1, 2, …, 26], "num_experts": 64, "top_k": 6}. Without moe_layers every layer
// is a MoE layer; num_experts, top_k: one number, or one per MoE layer. `path` names the object in messages.
// INVALID_ARGUMENT (kField) naming a field that is missing, unknown or of the wrong kind; Geometry::Create checks the
// rules of geometries.
absl::StatusOr<Geometry::Options> GeometryOptionsFromJson(const nlohmann::json& json, absl::string_view path);
nlohmann::json GeometryToJson(const Geometry& geometry);

// [[begin, end], …]
nlohmann::json RangesToJson(absl::Span<const RowRange> ranges);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_JSON_JSON_H_
