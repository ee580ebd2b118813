// How evenly the choices of one layer spread over its experts: the one rule behind `rrctl report`.
#ifndef CLIENT_RRCTL_LOAD_BALANCE_H_
#define CLIENT_RRCTL_LOAD_BALANCE_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"

namespace routing_replay::client {

struct LoadBalance {
  int64_t choices = 0;
  int64_t unused = 0;  // Experts that nothing chose.
  int64_t busiest = 0;
  int64_t busiest_count = 0;
  std::optional<double> max_to_mean;  // 1 where all are alike, up to the number of experts. Nothing without choices.
  // Shannon's, divided by that of experts that are all alike: 1 where they are, 0 where one has all. Nothing without
  // choices; 1 for a layer of one expert.
  std::optional<double> entropy;
};

// `counts` of each expert, not empty.
LoadBalance BalanceOf(absl::Span<const int64_t> counts);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_LOAD_BALANCE_H_
