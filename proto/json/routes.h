// The routes in the JSON body of an engine's answer: found without a copy of the ids.
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

// A text of the body.
struct RouteText {
  // Keys and indexes from the root to it, for example "choices", 0, "routed_experts", "data".
  std::vector<std::variant<std::string, size_t>> path;
  size_t begin = 0;  // Of its characters, without the quotes. They stand for themselves: none is escaped.
  size_t size = 0;
};

// The texts of the fields "routed_experts" and "prompt_routed_experts" of the root, of the items of a root that is a
// list, of "choices", and of "meta_info", "sglext" and "sgl_ext" at any of these places; in order. Where such
// a field is an object its "data" is meant, where it is a list its texts. Other kinds, and texts with escapes, are left
// out. INVALID_ARGUMENT (kEncoding, field "body") for what is no JSON of an object or a list; only structure and UTF-8
// are checked, not numbers and words. Thread-safe.
absl::StatusOr<std::vector<RouteText>> FindRoutes(absl::Span<const uint8_t> body);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_JSON_ROUTES_H_
