#include "routing_replay/wire/row_range.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace routing_replay {

std::string ToString(RowRange range) { return absl::StrCat("[", range.begin, ", ", range.end, ")"); }

absl::Status CheckNormal(absl::Span<const RowRange> ranges, RowRange bounds) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    const RowRange r = ranges[i];
    if (r.empty()) return absl::InvalidArgumentError(absl::StrCat("range ", i, " ", ToString(r), " is empty"));
    if (!bounds.contains(r)) {
      return absl::InvalidArgumentError(
          absl::StrCat("range ", i, " ", ToString(r), " is not inside ", ToString(bounds)));
    }
    if (i > 0 && r.begin <= ranges[i - 1].end) {
      return absl::InvalidArgumentError(
          absl::StrCat("range ", i, " ", ToString(r), " overlaps, touches or precedes ", ToString(ranges[i - 1])));
    }
  }
  return absl::OkStatus();
}

void AppendMerged(std::vector<RowRange>& ranges, RowRange range) {
  if (range.empty()) return;
  if (!ranges.empty() && ranges.back().end == range.begin) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

void Normalize(std::vector<RowRange>& ranges) {
  if (ranges.size() < 2) return;
  std::sort(ranges.begin(), ranges.end(), [](RowRange a, RowRange b) { return a.begin < b.begin; });
  size_t last = 0;
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin <= ranges[last].end) {
      ranges[last].end = std::max(ranges[last].end, ranges[i].end);
    } else {
      ranges[++last] = ranges[i];
    }
  }
  ranges.resize(last + 1);
}

std::vector<RowRange> Subtract(RowRange range, absl::Span<const RowRange> holes) {
  std::vector<RowRange> out;
  int64_t next = range.begin;
  for (RowRange hole : Clip(holes, range)) {
    AppendMerged(out, {next, hole.begin});
    next = hole.end;
  }
  AppendMerged(out, {next, range.end});
  return out;
}

std::vector<RowRange> Clip(absl::Span<const RowRange> ranges, RowRange bounds) {
  std::vector<RowRange> out;
  auto first = std::lower_bound(ranges.begin(), ranges.end(), bounds.begin,
                                [](const RowRange& r, int64_t begin) { return r.end <= begin; });
  for (; first != ranges.end() && first->begin < bounds.end; ++first) AppendMerged(out, Intersect(*first, bounds));
  return out;
}

int64_t TotalRows(absl::Span<const RowRange> ranges) {
  int64_t rows = 0;
  for (RowRange r : ranges) rows += r.size();
  return rows;
}

std::vector<RowRange> SplitAtWindows(RowRange range, int64_t window) {
  std::vector<RowRange> out;
  for (int64_t begin = range.begin; begin < range.end;) {
    const int64_t end = std::min(range.end, (begin / window + 1) * window);
    out.push_back({begin, end});
    begin = end;
  }
  return out;
}

}  // namespace routing_replay
