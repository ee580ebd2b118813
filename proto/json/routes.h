// Finds the routes in the JSON body of an engine's response, without copying the ids.
#ifndef PROTO_JSON_ROUTES_H_
#define PROTO_JSON_ROUTES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace routing_replay {
inline namespace wire {

// Where in the body a string with routes is.
struct RouteText {
  // Keys and indexes that lead from the root to the string, for example "choices", 0, "routed_experts", "data".
  std::vector<std::variant<std::string, size_t>> path;
  size_t begin = 0;  // Index in the body of the first character after the opening quote. The string has no escapes.
  size_t size = 0;
};

// Returns, in order, the strings of the fields "routed_experts" and "prompt_routed_experts". It searches the root
// object (or each item if the root is a list), each item of "choices", and the objects "meta_info", "sglext" and
// "sgl_ext" inside any of these. If such a field is an object, its "data" is used; if it is a list, its strings. Other
// kinds, and strings with escapes, are skipped. INVALID_ARGUMENT (kEncoding, field "body") if the body is not a JSON
// object or list; only structure and UTF-8 are checked, not numbers and words. Thread-safe.
absl::StatusOr<std::vector<RouteText>> FindRoutes(absl::Span<const uint8_t> body);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_JSON_ROUTES_H_
