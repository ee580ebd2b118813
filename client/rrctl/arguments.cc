#include "client/rrctl/arguments.h"

#include "absl/strings/ascii.h"
#include "client/rrctl/human.h"

namespace routing_replay {

std::vector<std::string> JoinWatchInterval(std::vector<std::string> words) {
  std::vector<std::string> joined;
  bool only_arguments = false;
  for (std::string& word : words) {
    const bool behind_watch = !only_arguments && !joined.empty() && joined.back() == "--watch";
    if (behind_watch && !word.empty() && absl::ascii_isdigit(word[0]) && ParseInterval(word).ok()) {
      joined.back() += "=" + word;
      continue;
    }
    only_arguments |= word == "--";
    joined.push_back(std::move(word));
  }
  return joined;
}

}  // namespace routing_replay
