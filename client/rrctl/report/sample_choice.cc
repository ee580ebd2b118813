#include "client/rrctl/report/sample_choice.h"

#include <algorithm>
#include <utility>

namespace routing_replay::client {
namespace {

// The finalizer of SplitMix64.
uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

}  // namespace

std::vector<size_t> ChooseSamples(absl::Span<const int64_t> handles, size_t count, uint64_t seed) {
  std::vector<std::pair<uint64_t, size_t>> drawn;
  drawn.reserve(handles.size());
  const uint64_t salt = Mix(seed + 0x9E3779B97F4A7C15);
  for (size_t i = 0; i < handles.size(); ++i) drawn.emplace_back(Mix(static_cast<uint64_t>(handles[i]) ^ salt), i);
  if (count < drawn.size()) {
    std::nth_element(drawn.begin(), drawn.begin() + static_cast<std::ptrdiff_t>(count), drawn.end());
    drawn.resize(count);
  }
  std::vector<size_t> chosen;
  chosen.reserve(drawn.size());
  for (const auto& [number, position] : drawn) chosen.push_back(position);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace routing_replay::client
