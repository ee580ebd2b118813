#include "routing_replay/trainer/on_policy.h"

#include <algorithm>

namespace routing_replay::trainer {
namespace {

bool IsMixed(absl::Span<const WeightSpan> spans) {
  return std::any_of(spans.begin(), spans.end(), [&](const WeightSpan& span) {
    return span.version != spans[0].version || span.label != spans[0].label;
  });
}

}  // namespace

WeightSummary SummarizeWeights(absl::Span<const absl::Span<const WeightSpan>> samples, std::optional<int64_t> current) {
  WeightSummary out;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].empty()) continue;
    ++out.samples;
    if (IsMixed(samples[i])) {
      ++out.mixed;
      if (!out.first_mixed) out.first_mixed = i;
    }
    for (const WeightSpan& span : samples[i]) {
      if (span.version != kUnknownWeightVersion) out.oldest = std::min(out.oldest.value_or(span.version), span.version);
    }
  }
  if (out.oldest && current && *current != kUnknownWeightVersion) out.lag = *current - *out.oldest;
  return out;
}

}  // namespace routing_replay::trainer
