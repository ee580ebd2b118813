#include "server/store/weight_spans.h"

#include <algorithm>
#include <utility>

namespace routing_replay {

void AppendSpan(std::vector<WeightSpan>& spans, WeightSpan span) {
  if (span.rows.empty()) return;
  if (!spans.empty() && spans.back().version == span.version && spans.back().label == span.label) {
    spans.back().rows.end = span.rows.end;
  } else {
    spans.push_back(std::move(span));
  }
}

void TruncateSpans(std::vector<WeightSpan>& spans, int64_t rows) {
  while (!spans.empty() && spans.back().rows.begin >= rows) spans.pop_back();
  if (!spans.empty()) spans.back().rows.end = std::min(spans.back().rows.end, rows);
}

}  // namespace routing_replay
