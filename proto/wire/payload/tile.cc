#include "proto/wire/payload/tile.h"

#include <algorithm>
#include <bit>
#include <cstring>

// If a row has 8 bytes per layer (K = 8 experts of one byte each), tiling is a transposition of 8-byte words, which is
// done in vectors.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "proto/wire/payload/tile.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

#include "proto/wire/simd_bytes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace routing_replay {
inline namespace wire {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// TurnSquare transposes a square of kSide rows with kSide words each: word i of every row goes to plane `to[i]`, from
// byte `at` on. kSide is at most 4, because wider vectors would need more steps for the same number of words.
#if HWY_TARGET == HWY_SCALAR

constexpr size_t kSide = 1;

void TurnSquare(const uint8_t* from, int64_t, uint8_t* const* to, int64_t at) { std::memcpy(to[0] + at, from, 8); }

#else

using Words = hn::CappedTag<uint64_t, 4>;

#if HWY_CAP_GE256

constexpr size_t kSide = 4;

void TurnSquare(const uint8_t* from, int64_t stride, uint8_t* const* to, int64_t at) {
  const Words d;
  const auto row0 = LoadBytes(d, from), row1 = LoadBytes(d, from + stride), row2 = LoadBytes(d, from + 2 * stride),
             row3 = LoadBytes(d, from + 3 * stride);
  // First two rows per vector: even01 holds the words 0 and 2 of rows 0 and 1, odd01 their words 1 and 3.
  const auto even01 = hn::InterleaveLower(row0, row1), odd01 = hn::InterleaveUpper(d, row0, row1);
  const auto even23 = hn::InterleaveLower(row2, row3), odd23 = hn::InterleaveUpper(d, row2, row3);
  // Then four rows per vector: one word of each.
  StoreBytes(hn::ConcatLowerLower(d, even23, even01), d, to[0] + at);
  StoreBytes(hn::ConcatLowerLower(d, odd23, odd01), d, to[1] + at);
  StoreBytes(hn::ConcatUpperUpper(d, even23, even01), d, to[2] + at);
  StoreBytes(hn::ConcatUpperUpper(d, odd23, odd01), d, to[3] + at);
}

#else

constexpr size_t kSide = 2;

void TurnSquare(const uint8_t* from, int64_t stride, uint8_t* const* to, int64_t at) {
  const Words d;
  const auto row0 = LoadBytes(d, from), row1 = LoadBytes(d, from + stride);
  StoreBytes(hn::InterleaveLower(row0, row1), d, to[0] + at);
  StoreBytes(hn::InterleaveUpper(d, row0, row1), d, to[1] + at);
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

void TileWords(const uint8_t* rows, int64_t stride, int64_t count, int64_t, absl::Span<uint8_t* const> planes) {
  HWY_DYNAMIC_DISPATCH(TileSquares)(rows, stride, count, planes.data(), planes.size());
}

// Number of planes tiled at a time. A cache line of a row holds the ids of several layers, so it is read once for all
// of them. More planes would give a core too many write streams.
constexpr size_t kGroup = 8;

// A layer's ids are copied as two parts of kPart bytes, which may overlap, or as one part if kOne.
template <size_t kPart, bool kOne>
void TileGroup(const uint8_t* rows, int64_t stride, int64_t count, int64_t bytes, absl::Span<uint8_t* const> planes) {
  const int64_t step = kOne ? kPart : bytes;
  const auto copy = [=](const uint8_t* from, uint8_t* to) {
    std::memcpy(to, from, kPart);
    if (!kOne) std::memcpy(to + step - kPart, from + step - kPart, kPart);
  };
  if (planes.size() == kGroup) {  // A constant, so that the inner loop unrolls.
    // A local copy: the compiler must assume that the written bytes may be part of `planes`.
    uint8_t* to[kGroup];
    std::copy(planes.begin(), planes.end(), to);
    for (int64_t row = 0; row < count; ++row) {
      for (size_t i = 0; i < kGroup; ++i) copy(rows + row * stride + i * step, to[i] + row * step);
    }
    return;
  }
  for (size_t i = 0; i < planes.size(); ++i) {
    uint8_t* const to = planes[i];
    for (int64_t row = 0; row < count; ++row) copy(rows + row * stride + i * step, to + row * step);
  }
}

template <size_t kPart>
void TileAs(const uint8_t* rows, int64_t stride, int64_t count, int64_t bytes, absl::Span<uint8_t* const> planes) {
  if (bytes == kPart) return TileGroup<kPart, true>(rows, stride, count, kPart, planes);
  TileGroup<kPart, false>(rows, stride, count, bytes, planes);
}

}  // namespace

void Tile(const uint8_t* rows, int64_t stride, int64_t count, int64_t bytes, absl::Span<uint8_t* const> planes) {
  static constexpr decltype(&Tile) kTile[] = {TileAs<1>,  TileAs<2>,  TileAs<4>,  TileAs<8>,
                                              TileAs<16>, TileAs<32>, TileAs<64>, TileAs<128>};
  const auto tile = bytes == 8 ? TileWords : kTile[std::bit_width(static_cast<uint64_t>(bytes)) - 1];
  for (size_t first = 0; first < planes.size(); first += kGroup) {
    tile(rows + first * bytes, stride, count, bytes, planes.subspan(first, kGroup));
  }
}

}  // namespace wire
}  // namespace routing_replay
#endif  // HWY_ONCE
