#include "tests/golden/kind.h"

#include <algorithm>

namespace routing_replay::golden {

const std::vector<Kind>& AnsweredKinds() {
  static const std::vector<Kind>& kinds = *new std::vector<Kind>{
      CodecKind(),      CodecMsSwiftKind(),       CodecNemoKind(),       CodecPrimeRlKind(), CodecSkyRlKind(),
      CodecTurnsKind(), CpSlicesKind(),           FrameworkLayersKind(), HybridKind(),       InvalidLayersKind(),
      LayersKind(),     LayersLayoutKind(),       LayoutParseKind(),     MoePatternKind(),   PaddingKind(),
      R2Kind(),         RoutingEdgeIndicesKind(), RoutingKind(),         RowsKind(),         ScheduleKind(),
  };
  return kinds;
}

bool IsWholeStem(const std::vector<std::string>& stems, const std::string& stem) {
  return std::find(stems.begin(), stems.end(), stem) != stems.end();
}

bool HasPrefix(const std::vector<std::string>& stems, const std::string& stem) {
  return std::any_of(stems.begin(), stems.end(),
                     [&](const std::string& prefix) { return prefix.ends_with('_') && stem.starts_with(prefix); });
}

const Kind* FindKind(const std::string& stem) {
  for (const Kind& kind : AnsweredKinds()) {
    if (IsWholeStem(kind.stems, stem)) return &kind;
  }
  for (const Kind& kind : AnsweredKinds()) {
    if (HasPrefix(kind.stems, stem)) return &kind;
  }
  return nullptr;
}

}  // namespace routing_replay::golden
