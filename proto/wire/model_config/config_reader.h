// Looks up the facts of a model's configuration under all names that they go by.
#ifndef PROTO_WIRE_MODEL_CONFIG_CONFIG_READER_H_
#define PROTO_WIRE_MODEL_CONFIG_CONFIG_READER_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace routing_replay {
inline namespace wire {

// Names of one fact.
using Keys = absl::Span<const char* const>;
// "a, b or c"
std::string Listed(Keys keys);

// Reads objects that may hold anything beside what is asked for. null counts as absent. Where several names of one fact
// are there they must say the same. The first thing that is wrong is kept: ask status() at the end. Not thread-safe;
// keeps references to what it is made of.
class ConfigReader {
 public:
  using Json = nlohmann::json;

  // `path` names the object in messages and sources, empty for the root. Whatever is found is noted in `sources`.
  ConfigReader(const Json& config, absl::string_view path, std::map<std::string, std::string>& sources)
      : config_(config), path_(path), sources_(sources) {}

  // The value under one of `keys`.
  const Json* Find(const char* fact, Keys keys);
  // Of this kind, or an error.
  std::optional<int64_t> Int(const char* fact, Keys keys);
  std::optional<double> Number(const char* fact, Keys keys);
  std::optional<bool> Flag(const char* fact, Keys keys);
  std::optional<std::string> Text(const char* fact, Keys keys);
  std::optional<std::vector<int64_t>> Ints(const char* fact, Keys keys);
  std::optional<std::vector<std::string>> Texts(const char* fact, Keys keys);
  // One number, or a list of them.
  std::optional<std::vector<int64_t>> IntOrInts(const char* fact, Keys keys);

  bool Has(const char* key) const;
  std::string PathOf(absl::string_view key) const;
  void Fail(absl::string_view key, absl::string_view what);
  void Update(const absl::Status& status) { status_.Update(status); }
  const absl::Status& status() const { return status_; }

 private:
  std::optional<int64_t> IntOf(const Json& value, absl::string_view key);
  // The key under which Find found `fact`, for messages.
  std::string Where(const char* fact) const { return sources_.at(fact); }
  void FailAt(const std::string& where, absl::string_view what);

  const Json& config_;
  const std::string path_;
  std::map<std::string, std::string>& sources_;
  absl::Status status_;
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MODEL_CONFIG_CONFIG_READER_H_
