// Sets of experts, compared over and over.
#ifndef CLIENT_RRCTL_COMPARE_EXPERT_SET_H_
#define CLIENT_RRCTL_COMPARE_EXPERT_SET_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace routing_replay::client {

// Not thread-safe.
class ExpertSet {
 public:
  // For ids below `num_experts`.
  explicit ExpertSet(int32_t num_experts) : times_(num_experts) {}

  // How many ids `a` and `b` share; one that stands twice in both counts twice.
  int32_t Shared(absl::Span<const uint16_t> a, absl::Span<const uint16_t> b) {
    for (const uint16_t id : a) ++times_[id];
    int32_t shared = 0;
    for (const uint16_t id : b) {
      if (times_[id] == 0) continue;
      --times_[id];
      ++shared;
    }
    for (const uint16_t id : a) times_[id] = 0;
    return shared;
  }

 private:
  std::vector<int32_t> times_;  // All 0 between calls.
};

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_COMPARE_EXPERT_SET_H_
