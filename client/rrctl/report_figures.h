// What a report counts: of samples' states their lengths and missing rows, of their rows the load of experts and how
// alike neighbouring rows are, and the ranges in which many values are gathered, so that a chart has room for them.
#ifndef CLIENT_RRCTL_REPORT_FIGURES_H_
#define CLIENT_RRCTL_REPORT_FIGURES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "client/rrctl/diff.h"
#include "client/rrctl/output.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::client {

// Positions, ascending, of `count` of the samples with these handles, or of all if they are no more. At random, but the
// same for the same handles and seed on every machine and in every order, and those for a smaller count are among them.
std::vector<size_t> ChooseSamples(absl::Span<const int64_t> handles, size_t count, uint64_t seed);

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

// How evenly the choices of one layer spread over its experts.
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

// "lengths" and "missing" of a report; see report.h.
Document LengthTable(const std::vector<SampleState>& samples);
// The samples that miss most, and how many miss any.
Document MissingTable(const std::vector<SampleState>& samples, int64_t& missing_samples);

// Half-open ranges that hold all groups of the samples: one per group, or neighbours together where there are many.
std::vector<std::pair<int64_t, int64_t>> GroupRanges(const std::vector<SampleState>& samples);
// Which of the ranges has `group`, which one of them does.
size_t RangeOf(const std::vector<std::pair<int64_t, int64_t>>& ranges, int64_t group);
// {"begin", "end", "samples", "rows", "unrecorded_rows", "lost_rows"} of one range each.
Document GroupTable(const std::vector<SampleState>& samples, const std::vector<std::pair<int64_t, int64_t>>& ranges);

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

// The weight versions of samples, in order.
// By number, those without one last by their label; neighbours together where there are many.
class VersionBins {
 public:
  explicit VersionBins(const std::vector<const SampleState*>& samples);

  size_t size() const { return labels_.size(); }
  // "17", "17 – 19", the engine's label, or "unknown".
  const std::string& label(size_t bin) const { return labels_[bin]; }
  // Where the rows of a sample that it was made of are counted.
  std::vector<BinnedRows> BinsOf(const SampleState& sample) const;

 private:
  // Whether it has no number, the number, the label.
  using Key = std::pair<std::pair<bool, int64_t>, std::string>;
  static Key KeyOf(const WeightSpan& span);
  static std::string LabelOf(const Key& key);

  std::map<Key, size_t> bins_;
  std::vector<std::string> labels_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_REPORT_FIGURES_H_
