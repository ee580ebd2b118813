// Shared by export, import and verify: splits samples into portions, and checks whether the run still exists.
#ifndef CLIENT_CHECKPOINT_RUN_PORTIONS_H_
#define CLIENT_CHECKPOINT_RUN_PORTIONS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "client/caller.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// Returns how many of the first samples form a portion: some tens of MB, or a single larger sample. `bytes_of(i)`
// returns the size of sample i.
template <typename BytesOf>
size_t PortionOf(size_t count, const BytesOf& bytes_of) {
  constexpr int64_t kPortionBytes = int64_t{32} << 20;
  int64_t bytes = 0;
  for (size_t i = 0; i < count && i < kMaxNamesPerCall; ++i) {
    bytes += bytes_of(i);
    if (i > 0 && bytes > kPortionBytes) return i;
  }
  return count < kMaxNamesPerCall ? count : kMaxNamesPerCall;
}

inline bool InGroups(const std::optional<std::pair<int64_t, int64_t>>& groups, int64_t group) {
  return !groups || (group >= groups->first && group < groups->second);
}

// Call this after all samples of a list were processed, if some of them were missing. OK means that these were released
// meanwhile. An error, that of Run::List, means that a server has lost the run.
inline absl::Status CheckSameRun(Run& run, Producer producer) {
  constexpr std::pair<int64_t, int64_t> kNone{0, 0};
  return run.List(kNone, producer).status();
}

}  // namespace routing_replay::client

#endif  // CLIENT_CHECKPOINT_RUN_PORTIONS_H_
