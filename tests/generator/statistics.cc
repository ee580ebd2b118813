#include "tests/generator/statistics.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace routing_replay::testing {

double LayerEntropy(absl::Span<const Routes> sequences, int32_t layer) {
  std::vector<int64_t> counts(sequences[0].num_experts);
  int64_t total = 0;
  for (const Routes& routes : sequences) {
    for (int64_t row = 0; row < routes.rows; ++row) {
      for (const uint16_t id : routes.at(row, layer)) ++counts[id];
    }
    total += routes.rows * routes.top_k;
  }
  double nats = 0;
  int64_t seen = 0;
  for (const int64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / static_cast<double>(total);
    nats -= share * std::log(share);
    ++seen;
  }
  nats += static_cast<double>(seen - 1) / (2.0 * static_cast<double>(total));
  return nats / std::log(sequences[0].num_experts);
}

double MeanEntropy(absl::Span<const Routes> sequences) {
  double sum = 0;
  for (int32_t layer = 0; layer < sequences[0].layers; ++layer) sum += LayerEntropy(sequences, layer);
  return sum / sequences[0].layers;
}

double LagOverlap(absl::Span<const Routes> sequences, int64_t lag) {
  int64_t shared = 0, possible = 0;
  for (const Routes& routes : sequences) {
    for (int64_t row = 0; row + lag < routes.rows; ++row) {
      for (int32_t layer = 0; layer < routes.layers; ++layer) {
        const auto now = routes.at(row, layer), later = routes.at(row + lag, layer);
        for (const uint16_t id : now) shared += std::count(later.begin(), later.end(), id);
        possible += routes.top_k;
      }
    }
  }
  return possible == 0 ? 0 : static_cast<double>(shared) / static_cast<double>(possible);
}

}  // namespace routing_replay::testing
