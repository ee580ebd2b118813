#include "client/rrctl/load_balance.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace routing_replay::client {

LoadBalance BalanceOf(absl::Span<const int64_t> counts) {
  const auto busiest = std::max_element(counts.begin(), counts.end());
  LoadBalance balance{.choices = std::accumulate(counts.begin(), counts.end(), int64_t{0}),
                      .unused = std::count(counts.begin(), counts.end(), 0),
                      .busiest = busiest - counts.begin(),
                      .busiest_count = *busiest};
  if (balance.choices == 0) return balance;
  const auto experts = static_cast<double>(counts.size());
  const auto choices = static_cast<double>(balance.choices);
  balance.max_to_mean = static_cast<double>(*busiest) * experts / choices;
  double bits = 0;
  for (const int64_t count : counts) {
    if (count > 0) bits -= static_cast<double>(count) / choices * std::log2(static_cast<double>(count) / choices);
  }
  balance.entropy = counts.size() == 1 ? 1.0 : bits / std::log2(experts);
  return balance;
}

}  // namespace routing_replay::client
