// Ranges that many values are gathered in, so that a picture has room for them.
#ifndef CLIENT_RRCTL_REPORT_BINS_H_
#define CLIENT_RRCTL_REPORT_BINS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace routing_replay::client {

// Cuts `count` things in order into at most `max_bins` runs of one length (the last may be shorter): half-open
// positions.
std::vector<std::pair<size_t, size_t>> EvenRuns(size_t count, size_t max_bins);

// Counts of values in ranges of one width, 1, 2 or 5 times a power of ten, which begin at multiples of it.
struct Histogram {
  int64_t begin = 0;
  int64_t width = 1;
  std::vector<int64_t> counts;  // From the range of the smallest value to that of the largest.
};
// With at most `max_bins` ranges. `values` are not negative; without any there are no ranges.
Histogram MakeHistogram(const std::vector<int64_t>& values, size_t max_bins);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_REPORT_BINS_H_
