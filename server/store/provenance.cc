#include "server/store/provenance.h"

#include <algorithm>
#include <utility>

namespace routing_replay::server {

bool SameOrigin(const Provenance& a, const Provenance& b) {
  return a.weight_version == b.weight_version && a.weight_label == b.weight_label && a.engine == b.engine;
}

void AppendProvenance(std::vector<Provenance>& list, Provenance next) {
  if (next.rows.empty()) return;
  if (list.empty() || !SameOrigin(list.back(), next)) {
    list.push_back(std::move(next));
    return;
  }
  list.back().rows.end = next.rows.end;
  list.back().appends += next.appends;
}

void TruncateProvenance(std::vector<Provenance>& list, int64_t rows) {
  while (!list.empty() && list.back().rows.begin >= rows) list.pop_back();
  if (!list.empty()) list.back().rows.end = std::min(list.back().rows.end, rows);
}

std::vector<WeightSpan> WeightSpansOf(const std::vector<Provenance>& list) {
  std::vector<WeightSpan> spans;
  for (const Provenance& from : list) {
    if (!spans.empty() && spans.back().version == from.weight_version && spans.back().label == from.weight_label) {
      spans.back().rows.end = from.rows.end;
    } else {
      spans.push_back({from.rows, from.weight_version, from.weight_label});
    }
  }
  return spans;
}

}  // namespace routing_replay::server
