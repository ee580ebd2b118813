// Half-open ranges of absolute row numbers, instead of loose offset pairs.
#ifndef ROUTING_REPLAY_WIRE_ROW_RANGE_H_
#define ROUTING_REPLAY_WIRE_ROW_RANGE_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace routing_replay {

// Rows begin, begin + 1, …, end - 1. A value type. The caller must ensure begin <= end; CheckNormal checks it.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;

  static constexpr RowRange OfSize(int64_t begin, int64_t rows) { return {begin, begin + rows}; }
  constexpr int64_t size() const { return end - begin; }
  constexpr bool empty() const { return begin >= end; }
  constexpr bool contains(int64_t row) const { return begin <= row && row < end; }
  constexpr bool contains(RowRange other) const { return begin <= other.begin && other.end <= end; }

  friend constexpr bool operator==(RowRange a, RowRange b) { return a.begin == b.begin && a.end == b.end; }
};

// The rows that both ranges have; empty() if there are none.
constexpr RowRange Intersect(RowRange a, RowRange b) {
  const RowRange r{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return r.empty() ? RowRange{r.begin, r.begin} : r;
}

// "[3, 17)"
std::string ToString(RowRange range);

// A list of ranges is *normal* when every range is non-empty and they are ascending, disjoint and not touching.
// INVALID_ARGUMENT names the first range that breaks this, or that is not inside `bounds`.
absl::Status CheckNormal(absl::Span<const RowRange> ranges, RowRange bounds);

// Appends `range` to a normal list, and merges it with the last range if the two touch. Ignores an empty `range`.
// Requires range.begin >= the last range's end.
void AppendMerged(std::vector<RowRange>& ranges, RowRange range);
// Turns non-empty ranges, in any order and perhaps overlapping, into a normal list in place.
void Normalize(std::vector<RowRange>& ranges);

// The parts of `range` that no member of the normal list `holes` covers, ascending.
std::vector<RowRange> Subtract(RowRange range, absl::Span<const RowRange> holes);

// The parts of the normal list `ranges` inside `bounds`, ascending.
std::vector<RowRange> Clip(absl::Span<const RowRange> ranges, RowRange bounds);

// The number of rows in all ranges together.
int64_t TotalRows(absl::Span<const RowRange> ranges);

// Cuts `range` at all multiples of `window`: with window = 64, [50, 130) becomes [50, 64), [64, 128), [128, 130).
// Requires window > 0.
std::vector<RowRange> SplitAtWindows(RowRange range, int64_t window);
// The number of windows that the rows [0, rows) touch.
constexpr int64_t WindowCount(int64_t rows, int64_t window) { return rows / window + (rows % window != 0 ? 1 : 0); }

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_WIRE_ROW_RANGE_H_
