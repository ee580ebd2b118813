// Takes random bytes for the JSON body of an engine's answer. The parser must either reject them, or return parts that
// lie inside the input; routes in valid JSON must be what a full JSON parser finds at the same path.
#include <nlohmann/json.hpp>

#include "proto/json/routes.h"
#include "tests/fuzz/smoke.h"

namespace routing_replay {
namespace {

using Bytes = absl::Span<const uint8_t>;

void CheckRoutes(Bytes body) {
  const auto found = FindRoutes(body);
  const auto parsed = nlohmann::json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  const bool valid = !parsed.is_discarded() && parsed.is_structured();
  Require(found.ok() || !valid, "a valid body is rejected");
  if (!found.ok()) return;
  for (const RouteText& text : *found) {
    Require(text.begin > 0 && text.begin + text.size < body.size(), "a text lies outside of the body");
    Require(body[text.begin - 1] == '"' && body[text.begin + text.size] == '"', "a text is not in quotes");
    if (!valid) continue;
    const nlohmann::json* at = &parsed;
    for (const auto& step : text.path) {
      const std::string* key = std::get_if<std::string>(&step);
      const size_t index = key == nullptr ? std::get<size_t>(step) : 0;
      Require(key == nullptr ? at->is_array() && index < at->size() : at->contains(*key), "a path does not exist");
      at = key == nullptr ? &(*at)[index] : &(*at)[*key];
    }
    const std::string there(body.begin() + text.begin, body.begin() + text.begin + text.size);
    Require(*at == there, "the text differs from the value at its path");
  }
}

}  // namespace
}  // namespace routing_replay

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  routing_replay::CheckRoutes({data, size});
  return 0;
}
