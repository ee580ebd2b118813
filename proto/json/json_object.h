// Reads the fields of a JSON object, every one of which must be known.
#ifndef PROTO_JSON_JSON_OBJECT_H_
#define PROTO_JSON_JSON_OBJECT_H_

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

namespace routing_replay {
inline namespace wire {

// Each Read… stores a field that is there and of the right kind and range, and leaves its target alone otherwise. The
// first thing that is wrong is kept: ask status() after the last Read…. Not thread-safe. Keeps a reference to `json`.
class JsonObject {
 public:
  using Json = nlohmann::json;

  // `path` names the object in messages; empty for the root.
  JsonObject(const Json& json, absl::string_view path);

  void Read(const char* key, int32_t& value);
  void Read(const char* key, int64_t& value);
  void Read(const char* key, uint64_t& value);
  void Read(const char* key, bool& value);
  void Read(const char* key, std::string& value);
  void Read(const char* key, std::optional<int32_t>& value);
  void Read(const char* key, std::optional<int64_t>& value);
  // A list of integers.
  void Read(const char* key, std::vector<int32_t>& value);
  void Read(const char* key, std::vector<int64_t>& value);
  // One integer or a list of them.
  void ReadOneOrMany(const char* key, std::vector<int32_t>& value);
  // One of `names`.
  template <typename Enum>
  void Read(const char* key, const std::vector<std::pair<const char*, Enum>>& names, Enum& value);
  // The field as it is, or nothing.
  const Json* Find(const char* key);
  // The same where null is as good as absent.
  const Json* FindValue(const char* key);

  void Require(const char* key);
  std::string PathOf(absl::string_view key) const;
  // INVALID_ARGUMENT (kField) naming the first wrong, missing or unknown field; OK if there is none.
  absl::Status status() const;

 private:
  template <typename Int>
  void ReadInt(const char* key, const Json& json, Int& value);
  template <typename Int>
  void ReadList(const char* key, std::vector<Int>& value);
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
  Fail(key, "is none of " + choices);
}

// The text as JSON. INVALID_ARGUMENT (kField) naming `field` if it is none.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, absl::string_view field);
// One line; bytes that are not UTF-8 are replaced.
std::string DumpJson(const nlohmann::json& json);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_JSON_JSON_OBJECT_H_
