#include "client/rrctl/report/sample_tables.h"

#include <algorithm>
#include <limits>

#include "client/rrctl/report/bins.h"

namespace routing_replay::client {
namespace {

constexpr size_t kLengthBins = 32;
constexpr size_t kGroupBins = 64;
constexpr size_t kMissingSamples = 20;

struct Missing {
  int64_t rows = 0;  // Committed and lost.
  int64_t unrecorded = 0;
  int64_t lost = 0;
  int64_t missing() const { return unrecorded + lost; }
};

Missing MissingOf(const SampleState& state) {
  const int64_t lost = std::max<int64_t>(0, state.lost_end - state.committed_rows);
  return {.rows = state.committed_rows + lost, .unrecorded = TotalRows(state.unrecorded), .lost = lost};
}

int64_t LengthOf(const SampleState& state) { return state.num_tokens.value_or(state.committed_rows); }

}  // namespace

Document LengthTable(const std::vector<SampleState>& samples) {
  std::vector<int64_t> lengths;
  lengths.reserve(samples.size());
  for (const SampleState& state : samples) lengths.push_back(LengthOf(state));
  std::sort(lengths.begin(), lengths.end());
  const Histogram histogram = MakeHistogram(lengths, kLengthBins);
  // The nearest rank, so that it is a length that there is.
  const auto quantile = [&](double fraction) -> Document {
    if (lengths.empty()) return nullptr;
    const auto rank = static_cast<size_t>(fraction * static_cast<double>(lengths.size() - 1) + 0.5);
    return lengths[rank];
  };
  return {{"samples", lengths.size()}, {"median", quantile(0.5)},  {"p99", quantile(0.99)},
          {"longest", quantile(1)},    {"begin", histogram.begin}, {"width", histogram.width},
          {"counts", histogram.counts}};
}

Document MissingTable(const std::vector<SampleState>& samples, int64_t& missing_samples) {
  std::vector<std::pair<Missing, const SampleState*>> missing;
  for (const SampleState& state : samples) {
    const Missing of = MissingOf(state);
    if (of.missing() > 0) missing.emplace_back(of, &state);
  }
  missing_samples = static_cast<int64_t>(missing.size());
  const size_t shown = std::min(missing.size(), kMissingSamples);
  std::partial_sort(missing.begin(), missing.begin() + static_cast<std::ptrdiff_t>(shown), missing.end(),
                    [](const auto& a, const auto& b) {
                      if (a.first.missing() != b.first.missing()) return a.first.missing() > b.first.missing();
                      return a.second->sample < b.second->sample;
                    });
  Document rows = Document::array();
  for (size_t i = 0; i < shown; ++i) {
    const auto& [of, state] = missing[i];
    rows.push_back({{"sample", state->sample},
                    {"group", state->group},
                    {"rows", of.rows},
                    {"unrecorded_rows", of.unrecorded},
                    {"lost_rows", of.lost}});
  }
  return rows;
}

std::vector<std::pair<int64_t, int64_t>> GroupRanges(const std::vector<SampleState>& samples) {
  std::vector<int64_t> groups;
  groups.reserve(samples.size());
  for (const SampleState& state : samples) groups.push_back(state.group);
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [begin, end] : EvenRuns(groups.size(), kGroupBins)) {
    const int64_t last = groups[end - 1];
    ranges.emplace_back(groups[begin], last == std::numeric_limits<int64_t>::max() ? last : last + 1);
  }
  return ranges;
}

size_t RangeOf(const std::vector<std::pair<int64_t, int64_t>>& ranges, int64_t group) {
  const auto behind = std::upper_bound(ranges.begin(), ranges.end(), group,
                                       [](int64_t value, const auto& range) { return value < range.first; });
  return static_cast<size_t>(behind - ranges.begin()) - 1;
}

Document GroupTable(const std::vector<SampleState>& samples, const std::vector<std::pair<int64_t, int64_t>>& ranges) {
  std::vector<Missing> totals(ranges.size());
  std::vector<int64_t> counts(ranges.size());
  for (const SampleState& state : samples) {
    const size_t at = RangeOf(ranges, state.group);
    const Missing of = MissingOf(state);
    ++counts[at];
    totals[at].rows += of.rows;
    totals[at].unrecorded += of.unrecorded;
    totals[at].lost += of.lost;
  }
  Document rows = Document::array();
  for (size_t i = 0; i < ranges.size(); ++i) {
    rows.push_back({{"begin", ranges[i].first},
                    {"end", ranges[i].second},
                    {"samples", counts[i]},
                    {"rows", totals[i].rows},
                    {"unrecorded_rows", totals[i].unrecorded},
                    {"lost_rows", totals[i].lost}});
  }
  return rows;
}

}  // namespace routing_replay::client
