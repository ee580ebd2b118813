#include "client/rrctl/report/version_bins.h"

#include "absl/strings/str_cat.h"
#include "client/rrctl/report/bins.h"

namespace routing_replay::client {
namespace {

// Counts of each expert are kept for every bin.
constexpr size_t kVersionBins = 32;

}  // namespace

VersionBins::Key VersionBins::KeyOf(const WeightSpan& span) {
  const bool unnumbered = span.version == kUnknownWeightVersion;
  return {{unnumbered, span.version}, unnumbered ? span.label : ""};
}

std::string VersionBins::LabelOf(const Key& key) {
  if (!key.first.first) return absl::StrCat(key.first.second);
  return key.second.empty() ? "unknown" : key.second;
}

VersionBins::VersionBins(const std::vector<const SampleState*>& samples) {
  for (const SampleState* sample : samples) {
    for (const WeightSpan& span : sample->weights) bins_.emplace(KeyOf(span), 0);
  }
  const std::vector<std::pair<size_t, size_t>> runs = EvenRuns(bins_.size(), kVersionBins);
  auto at = bins_.begin();
  for (const auto& [begin, end] : runs) {
    const Key first = at->first;
    Key last = first;
    for (size_t i = begin; i < end; ++i, ++at) {
      at->second = labels_.size();
      last = at->first;
    }
    labels_.push_back(first == last ? LabelOf(first) : absl::StrCat(LabelOf(first), " – ", LabelOf(last)));
  }
}

std::vector<BinnedRows> VersionBins::BinsOf(const SampleState& sample) const {
  std::vector<BinnedRows> rows;
  for (const WeightSpan& span : sample.weights) rows.push_back({span.rows, bins_.at(KeyOf(span))});
  return rows;
}

}  // namespace routing_replay::client
