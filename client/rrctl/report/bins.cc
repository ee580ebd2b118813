#include "client/rrctl/report/bins.h"

#include <algorithm>

namespace routing_replay::client {

std::vector<std::pair<size_t, size_t>> EvenRuns(size_t count, size_t max_bins) {
  std::vector<std::pair<size_t, size_t>> runs;
  const size_t length = (count + max_bins - 1) / max_bins;
  for (size_t begin = 0; begin < count; begin += length) runs.emplace_back(begin, std::min(begin + length, count));
  return runs;
}

Histogram MakeHistogram(const std::vector<int64_t>& values, size_t max_bins) {
  Histogram histogram;
  if (values.empty()) return histogram;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const auto bins = [&](int64_t width) { return static_cast<size_t>(*most / width - *least / width + 1); };
  // 1, 2, 5, 10, 20, …
  for (int64_t factor = 2; bins(histogram.width) > max_bins; factor = factor == 2 ? 5 : factor == 5 ? 10 : 2) {
    int64_t power = 1;
    while (power * 10 <= histogram.width) power *= 10;
    histogram.width = power * factor;
  }
  histogram.begin = *least / histogram.width * histogram.width;
  histogram.counts.resize(bins(histogram.width));
  for (const int64_t value : values) ++histogram.counts[(value - histogram.begin) / histogram.width];
  return histogram;
}

}  // namespace routing_replay::client
