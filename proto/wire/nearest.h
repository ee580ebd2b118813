// What a word that is not known was most likely meant to be.
#ifndef PROTO_WIRE_NEAREST_H_
#define PROTO_WIRE_NEAREST_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace routing_replay {
inline namespace wire {

// Those of `words` that are nearest to `word`, in their order: one letter differs, or a third of its letters; none
// where all differ more.
std::vector<std::string> Nearest(absl::string_view word, const std::vector<std::string>& words);

// "there is no KIND 'word'; did you mean a or b?"
std::string ThereIsNo(absl::string_view kind, absl::string_view word, const std::vector<std::string>& words);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_NEAREST_H_
