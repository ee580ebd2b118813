#include "proto/wire/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace routing_replay {
inline namespace wire {
namespace {

// Letters to put in, take out or exchange on the way from one to the other.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t exchanged = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(row[j + 1], std::min({row[j] + 1, row[j + 1] + 1, exchanged}));
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> Nearest(absl::string_view word, const std::vector<std::string>& words) {
  size_t best = std::max<size_t>(1, word.size() / 3);
  std::vector<std::string> nearest;
  for (const std::string& candidate : words) {
    const size_t distance = EditDistance(word, candidate);
    if (distance > best) continue;
    if (distance < best) nearest.clear();
    best = distance;
    nearest.push_back(candidate);
  }
  return nearest;
}

std::string ThereIsNo(absl::string_view kind, absl::string_view word, const std::vector<std::string>& words) {
  const std::vector<std::string> near = Nearest(word, words);
  return absl::StrCat("there is no ", kind, " '", word, "'",
                      near.empty() ? "" : absl::StrCat("; did you mean ", absl::StrJoin(near, " or "), "?"));
}

}  // namespace wire
}  // namespace routing_replay
