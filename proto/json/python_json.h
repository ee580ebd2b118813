// JSON as Python's json module writes it: with NaN, Infinity and -Infinity as bare words.
#ifndef PROTO_JSON_PYTHON_JSON_H_
#define PROTO_JSON_PYTHON_JSON_H_

#include <string>

#include "absl/strings/string_view.h"

namespace routing_replay {
inline namespace wire {

// The text with these words as strings: "nan", "inf", "-inf". Text without them is as it was.
std::string QuoteNonFinite(absl::string_view text);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_JSON_PYTHON_JSON_H_
