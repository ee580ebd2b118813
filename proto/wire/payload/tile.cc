#include "proto/wire/payload/tile.h"

#include <algorithm>
#include <cstring>

#include "proto/wire/payload/tile_words.h"

namespace routing_replay {
inline namespace wire {
namespace {

// A cache line of a row holds the ids of several layers: it is read once for all of them. More planes at a time would
// be more streams than a core writes well.
constexpr size_t kGroup = 8;

template <int64_t kBytes>
void TileGroup(const uint8_t* rows, int64_t stride, int64_t count, absl::Span<const TileColumn> columns) {
  // Copies, because bytes that are written could be part of `columns` for all that the compiler knows.
  const uint8_t* from[kGroup] = {};
  uint8_t* to[kGroup] = {};
  for (size_t i = 0; i < columns.size(); ++i) {
    from[i] = rows + columns[i].offset;
    to[i] = columns[i].plane;
  }
  if (columns.size() == kGroup) {  // A constant, so that the inner loop unrolls.
    for (int64_t row = 0; row < count; ++row) {
      for (size_t i = 0; i < kGroup; ++i) std::memcpy(to[i] + row * kBytes, from[i] + row * stride, kBytes);
    }
    return;
  }
  for (size_t i = 0; i < columns.size(); ++i) {
    for (int64_t row = 0; row < count; ++row) std::memcpy(to[i] + row * kBytes, from[i] + row * stride, kBytes);
  }
}

// As TileGroup<8>. Falls back to it where the columns do not lie side by side.
void TileWordGroup(const uint8_t* rows, int64_t stride, int64_t count, absl::Span<const TileColumn> columns) {
  uint8_t* planes[kGroup] = {};
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i].offset != columns[0].offset + static_cast<int64_t>(8 * i)) {
      return TileGroup<8>(rows, stride, count, columns);
    }
    planes[i] = columns[i].plane;
  }
  TileWords(rows + columns[0].offset, stride, count, absl::MakeConstSpan(planes, columns.size()));
}

void TileAnyGroup(const uint8_t* rows, int64_t stride, int64_t count, absl::Span<const TileColumn> columns) {
  for (const TileColumn& column : columns) {
    for (int64_t row = 0; row < count; ++row) {
      std::memcpy(column.plane + row * column.bytes, rows + row * stride + column.offset, column.bytes);
    }
  }
}

}  // namespace

void Tile(const uint8_t* rows, int64_t stride, int64_t count, absl::Span<const TileColumn> columns) {
  while (!columns.empty()) {
    const int64_t bytes = columns.front().bytes;
    const auto same = [bytes](const TileColumn& column) { return column.bytes == bytes; };
    const auto group = columns.first(std::min(kGroup, columns.size()));
    const auto uniform = group.first(std::find_if_not(group.begin(), group.end(), same) - group.begin());
    columns.remove_prefix(uniform.size());
    switch (bytes) {
      case 4:
        TileGroup<4>(rows, stride, count, uniform);
        break;
      case 8:
        TileWordGroup(rows, stride, count, uniform);
        break;
      case 16:
        TileGroup<16>(rows, stride, count, uniform);
        break;
      default:
        TileAnyGroup(rows, stride, count, uniform);
    }
  }
}

}  // namespace wire
}  // namespace routing_replay
