// `rrctl report`: figures about the routes of a run, as numbers and as one HTML page.
#ifndef CLIENT_RRCTL_REPORT_H_
#define CLIENT_RRCTL_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/rrctl/application.h"
#include "client/rrctl/diff.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::client {

void AddReport(Application& application);

struct ReportOptions {
  std::string run;
  int64_t samples = 64;  // Limit for the samples whose rows are read.
};

// The figures about the rollout's rows. They are exact, except those that cover only the samples that were read:
//   "run"      as `rrctl stat RUN`
//   "load"     of the read samples, for each layer: {"layer", "rows", "experts", "unused", "busiest", "busiest_count",
//              "max_to_mean", "entropy", "counts"}
//   "samples"  {"all", "read", "damaged": [{"sample", "error"}]}
//   "groups"   [{"begin", "end", "samples", "rows", "unrecorded_rows", "layers": [{"max_to_mean",
//              "entropy"}]}] in the order of groups; if there are many groups, one entry is for several neighbouring
//              ones. "rows" counts the committed rows of all samples; "layers" covers only the read
//              samples
//   "mismatch" null if the trainer recorded nothing, else {"samples", "rows", "layers": [{"layer", "choices",
//              "order_only", "other_experts"}]}: the differences between the rollout's and the trainer's rows, in the
//              read samples that have both.
// Needs the memory of `rrctl ls` plus that of one portion. NOT_FOUND (kNoRun). Samples that cannot be read are listed
// in "damaged" and do not end the report.
absl::StatusOr<Document> GatherReport(Client& client, const ReportOptions& options);

// Returns the report as one self-contained HTML file, which needs no network and no other file. `made` is the time, as
// text. The page (report.html) draws itself from the embedded JSON.
extern const char kReportTemplate[];  // The contents of report.html at build time.
std::string RenderReport(const Document& report, const std::string& made);

// Computes the figures (report_figures.cc): missing rows from the states of samples; expert load from their rows; and
// ranges that combine many values to fit a chart.

// Chooses `count` of `all` samples at random, always the same ones, and returns their positions, ascending. A larger
// `count` chooses the samples that a smaller one chooses, and more.
std::vector<size_t> ChooseSamples(size_t all, size_t count);

// How evenly the choices of one layer are spread over its experts.
struct LoadBalance {
  int64_t choices = 0;  // Number of ids: K per row. (A "choice" of diff.h is all K of them.)
  int64_t unused = 0;   // Experts that no row chose.
  int64_t busiest = 0;
  int64_t busiest_count = 0;
  // Largest count divided by the mean: 1 if all are equal, at most the number of experts. Not set without choices.
  std::optional<double> max_to_mean;
  // Shannon entropy, divided by that of an even load: 1 for an even load, 0 if one expert has everything. Not set
  // without choices; 1 for a layer of one expert.
  std::optional<double> entropy;
};

// `counts`: for each expert, how many rows chose it. Must not be empty.
LoadBalance BalanceOf(absl::Span<const int64_t> counts);

// Half-open ranges that cover all groups of the samples: one range per group, or, if there are many groups, one for
// several neighbouring groups.
std::vector<std::pair<int64_t, int64_t>> GroupRanges(const std::vector<SampleState>& samples);
// Returns the index of the range that contains `group`; there must be one.
size_t RangeOf(const std::vector<std::pair<int64_t, int64_t>>& ranges, int64_t group);
// {"begin", "end", "samples", "rows", "unrecorded_rows"} for each range.
Document GroupTable(const std::vector<SampleState>& samples, const std::vector<std::pair<int64_t, int64_t>>& ranges);

// Counts how often each expert was chosen, per bin and layer. Its memory does not grow with the number of rows: it has
// `bins` × layers × experts counts. Not thread-safe.
class RouteScan {
 public:
  // `geometry` must outlive it.
  RouteScan(const Geometry& geometry, size_t bins);

  // Counts the rows of a portion, of all MoE layers, in this bin.
  void Add(const SampleRows& rows, size_t bin);

  int64_t bin_rows(size_t bin) const { return bin_rows_[bin]; }
  absl::Span<const int64_t> counts(size_t bin, int32_t ordinal) const { return counts_[bin][ordinal]; }

 private:
  const Geometry& geometry_;
  std::vector<int64_t> bin_rows_;
  std::vector<std::vector<std::vector<int64_t>>> counts_;  // [bin][ordinal][expert]
};

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_REPORT_H_
