#include "proto/wire/payload/tile.h"

#include <algorithm>
#include <cstring>

// Tiling 8-byte columns (K = 8 experts of one byte each) is a transposition of words, done in vectors.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "proto/wire/payload/tile.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace routing_replay {
inline namespace wire {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// TurnSquare moves kSide words of each of kSide rows, starting at `from`, to as many planes. Vectors wider than four
// words would need more steps for the same number of words.
#if HWY_TARGET == HWY_SCALAR

constexpr size_t kSide = 1;

void TurnSquare(const uint8_t* from, int64_t, uint8_t* const* to, int64_t at) { std::memcpy(to[0] + at, from, 8); }

#else

using Words = hn::CappedTag<uint64_t, 4>;

hn::Vec<Words> LoadWords(const uint8_t* from) {
  const hn::Repartition<uint8_t, Words> bytes;
  return hn::BitCast(Words(), hn::LoadU(bytes, from));
}

void StoreWords(hn::Vec<Words> words, uint8_t* to) {
  const hn::Repartition<uint8_t, Words> bytes;
  hn::StoreU(hn::BitCast(bytes, words), bytes, to);
}

#if HWY_CAP_GE256

constexpr size_t kSide = 4;

void TurnSquare(const uint8_t* from, int64_t stride, uint8_t* const* to, int64_t at) {
  const Words d;
  const auto row0 = LoadWords(from), row1 = LoadWords(from + stride), row2 = LoadWords(from + 2 * stride),
             row3 = LoadWords(from + 3 * stride);
  // Words 0 and 2, and 1 and 3, of two rows …
  const auto even01 = hn::InterleaveLower(row0, row1), odd01 = hn::InterleaveUpper(d, row0, row1);
  const auto even23 = hn::InterleaveLower(row2, row3), odd23 = hn::InterleaveUpper(d, row2, row3);
  // … and one word of four rows.
  StoreWords(hn::ConcatLowerLower(d, even23, even01), to[0] + at);
  StoreWords(hn::ConcatLowerLower(d, odd23, odd01), to[1] + at);
  StoreWords(hn::ConcatUpperUpper(d, even23, even01), to[2] + at);
  StoreWords(hn::ConcatUpperUpper(d, odd23, odd01), to[3] + at);
}

#else

constexpr size_t kSide = 2;

void TurnSquare(const uint8_t* from, int64_t stride, uint8_t* const* to, int64_t at) {
  const auto row0 = LoadWords(from), row1 = LoadWords(from + stride);
  StoreWords(hn::InterleaveLower(row0, row1), to[0] + at);
  StoreWords(hn::InterleaveUpper(Words(), row0, row1), to[1] + at);
}

#endif
#endif

void TileSquares(const uint8_t* rows, int64_t stride, int64_t count, uint8_t* const* planes, size_t columns) {
  const size_t whole = columns / kSide * kSide;
  int64_t row = 0;
  for (; row + static_cast<int64_t>(kSide) <= count; row += kSide) {
    for (size_t i = 0; i < whole; i += kSide) TurnSquare(rows + row * stride + 8 * i, stride, planes + i, 8 * row);
  }
  for (size_t i = whole; i < columns; ++i) {
    for (int64_t r = 0; r < row; ++r) std::memcpy(planes[i] + 8 * r, rows + r * stride + 8 * i, 8);
  }
  for (; row < count; ++row) {
    for (size_t i = 0; i < columns; ++i) std::memcpy(planes[i] + 8 * row, rows + row * stride + 8 * i, 8);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace wire
}  // namespace routing_replay
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace routing_replay {
inline namespace wire {
namespace {

HWY_EXPORT(TileSquares);

// Word i of row r, at rows + r · stride + 8 · i, moves to planes[i] + 8 · r, for r in [0, count). Any alignment. Planes
// must not overlap each other or the rows.
void TileWords(const uint8_t* rows, int64_t stride, int64_t count, absl::Span<uint8_t* const> planes) {
  HWY_DYNAMIC_DISPATCH(TileSquares)(rows, stride, count, planes.data(), planes.size());
}

// A cache line of a row holds the ids of several layers, and is read once for all of them. With more planes at a time a
// core would have too many write streams.
constexpr size_t kGroup = 8;

template <int64_t kBytes>
void TileGroup(const uint8_t* rows, int64_t stride, int64_t count, absl::Span<const TileColumn> columns) {
  // Local copies: the compiler must assume that the written bytes may be part of `columns`.
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

// The same as TileGroup<8>. Falls back to it if the columns do not lie side by side.
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
#endif  // HWY_ONCE
