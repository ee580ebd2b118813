#include "proto/json/python_json.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"

namespace routing_replay {
inline namespace wire {

std::string QuoteNonFinite(absl::string_view text) {
  constexpr std::pair<absl::string_view, const char*> kWords[] = {
      {"-Infinity", "\"-inf\""}, {"Infinity", "\"inf\""}, {"NaN", "\"nan\""}};
  std::string quoted;
  quoted.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      quoted += text[i++];
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      const auto* word = std::find_if(std::begin(kWords), std::end(kWords), [&](const auto& candidate) {
        return absl::StartsWith(text.substr(i), candidate.first);
      });
      if (word != std::end(kWords)) {
        quoted += word->second;
        i += word->first.size() - 1;
        continue;
      }
    }
    if (i < text.size()) quoted += text[i];
  }
  return quoted;
}

}  // namespace wire
}  // namespace routing_replay
