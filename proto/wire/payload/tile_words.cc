#include "proto/wire/payload/tile_words.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "proto/wire/payload/tile_words.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace routing_replay {
inline namespace wire {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// TurnSquare takes kSide words of each of kSide rows, from `from` on, to as many planes. Wider vectors than those of
// four words would need more steps for the same words.
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

}  // namespace

void TileWords(const uint8_t* rows, int64_t stride, int64_t count, absl::Span<uint8_t* const> planes) {
  HWY_DYNAMIC_DISPATCH(TileSquares)(rows, stride, count, planes.data(), planes.size());
}

}  // namespace wire
}  // namespace routing_replay
#endif  // HWY_ONCE
