#include "client/rrctl/report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace routing_replay::client {
namespace {

constexpr size_t kGroupBins = 64;

// The samples of a range of groups.
struct GroupTotals {
  int64_t samples = 0;
  int64_t rows = 0;
  int64_t unrecorded = 0;
};

}  // namespace

std::vector<size_t> ChooseSamples(size_t all, size_t count) {
  std::vector<size_t> chosen(all);
  std::iota(chosen.begin(), chosen.end(), 0);
  std::shuffle(chosen.begin(), chosen.end(), std::mt19937_64(1));
  chosen.resize(std::min(all, count));
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

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

std::vector<std::pair<int64_t, int64_t>> GroupRanges(const std::vector<SampleState>& samples) {
  std::vector<int64_t> groups;
  groups.reserve(samples.size());
  for (const SampleState& state : samples) groups.push_back(state.group);
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  std::vector<std::pair<int64_t, int64_t>> ranges;
  const size_t length = (groups.size() + kGroupBins - 1) / kGroupBins;
  for (size_t begin = 0; begin < groups.size(); begin += length) {
    const int64_t last = groups[std::min(begin + length, groups.size()) - 1];
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
  std::vector<GroupTotals> totals(ranges.size());
  for (const SampleState& state : samples) {
    GroupTotals& total = totals[RangeOf(ranges, state.group)];
    ++total.samples;
    total.rows += state.committed_rows;
    total.unrecorded += TotalRows(state.unrecorded);
  }
  Document rows = Document::array();
  for (size_t i = 0; i < ranges.size(); ++i) {
    rows.push_back({{"begin", ranges[i].first},
                    {"end", ranges[i].second},
                    {"samples", totals[i].samples},
                    {"rows", totals[i].rows},
                    {"unrecorded_rows", totals[i].unrecorded}});
  }
  return rows;
}

RouteScan::RouteScan(const Geometry& geometry, size_t bins) : geometry_(geometry), bin_rows_(bins), counts_(bins) {
  for (auto& bin : counts_) {
    for (const LayerRouting& layer : geometry.layers()) bin.emplace_back(layer.num_experts);
  }
}

void RouteScan::Add(const SampleRows& rows, size_t bin) {
  bin_rows_[bin] += TotalRows(rows.rows);
  for (int32_t ordinal = 0; ordinal < geometry_.num_moe_layers(); ++ordinal) {
    for (const uint16_t id : rows.layers[ordinal]) ++counts_[bin][ordinal][id];
  }
}

}  // namespace routing_replay::client
