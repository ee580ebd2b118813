#include "client/rrctl/arguments.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/time/time.h"

namespace routing_replay::client {

namespace {

bool IsTime(const std::string& word) {
  double seconds = 0;
  absl::Duration duration;
  const bool number = !word.empty() && absl::ascii_isdigit(static_cast<unsigned char>(word[0]));
  return number && (absl::SimpleAtod(word, &seconds) || absl::ParseDuration(word, &duration));
}

}  // namespace

std::vector<std::string> JoinWatchInterval(std::vector<std::string> words) {
  std::vector<std::string> joined;
  bool only_arguments = false;
  for (std::string& word : words) {
    const bool behind_watch = !only_arguments && !joined.empty() && joined.back() == "--watch";
    if (behind_watch && IsTime(word)) {
      joined.back() += "=" + word;
      continue;
    }
    only_arguments |= word == "--";
    joined.push_back(std::move(word));
  }
  return joined;
}

}  // namespace routing_replay::client
