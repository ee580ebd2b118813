// The weight versions of samples, in order.
#ifndef CLIENT_RRCTL_REPORT_VERSION_BINS_H_
#define CLIENT_RRCTL_REPORT_VERSION_BINS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "client/rrctl/report/route_scan.h"
#include "routing_replay/wire/sample_state.h"

namespace routing_replay::client {

// By number, those without one last by their label; neighbours together where they are many.
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

#endif  // CLIENT_RRCTL_REPORT_VERSION_BINS_H_
