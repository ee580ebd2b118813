// What rows tell: how alike neighbouring rows are, and the load by weight version and group.
#ifndef CLIENT_RRCTL_REPORT_ROUTE_SCAN_H_
#define CLIENT_RRCTL_REPORT_ROUTE_SCAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "client/rrctl/compare/expert_set.h"
#include "client/rrctl/compare/route_comparison.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::client {

// Rows whose load is counted in bin `bin`.
struct BinnedRows {
  RowRange rows;
  size_t bin = 0;
};

// Not thread-safe. Memory does not grow with the rows: counts of `bins` × layers × experts.
class RouteScan {
 public:
  struct Neighbours {
    int64_t pairs = 0;       // Rows r and r + 1 of a sample, both recorded.
    int64_t shared_ids = 0;  // Experts that both chose, over all pairs.
  };

  // `geometry` outlives it.
  RouteScan(const Geometry& geometry, size_t bins);

  // The next rows are those of another sample.
  void BeginSample();
  // The rows of a portion, portions ascending. A row counts in each of `bins` that has it.
  void Add(const DecodedRows& rows, absl::Span<const BinnedRows> bins);

  const Neighbours& neighbours(int32_t ordinal) const { return neighbours_[ordinal]; }
  int64_t bin_rows(size_t bin) const { return bin_rows_[bin]; }
  absl::Span<const int64_t> counts(size_t bin, int32_t ordinal) const { return counts_[bin][ordinal]; }

 private:
  void CountNeighbours(const DecodedRows& rows, int32_t ordinal);
  void CountBins(const DecodedRows& rows, absl::Span<const BinnedRows> bins);

  const Geometry& geometry_;
  std::vector<ExpertSet> sets_;
  std::vector<Neighbours> neighbours_;
  std::vector<int64_t> bin_rows_;
  std::vector<std::vector<std::vector<int64_t>>> counts_;  // [bin][ordinal][expert]
  int64_t last_row_;                         // Of the sample so far; one that has no neighbour before the first.
  std::vector<std::vector<uint16_t>> last_;  // Its choices.
};

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_REPORT_ROUTE_SCAN_H_
