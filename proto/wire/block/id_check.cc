#include "proto/wire/block/id_check.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <numeric>
#include <vector>

#include "absl/types/span.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "proto/wire/block/id_check.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "proto/wire/simd_load-inl.h"

#ifndef PROTO_WIRE_BLOCK_ID_CHECK_TURNS_
#define PROTO_WIRE_BLOCK_ID_CHECK_TURNS_
namespace routing_replay {
inline namespace wire {

inline constexpr size_t kGroupBytes = 16;  // TableLookupBytes moves bytes within groups of this many.

// For rotating each row in a group by 1, 2, … slots: which byte moves to each position.
struct alignas(kGroupBytes) Turns {
  uint8_t from[kGroupBytes / 2][kGroupBytes];
};

// Result of one pass over many rows.
struct RowsSeen {
  size_t largest_id = 0;
  bool duplicate = false;
};

// True if rows of this many bytes fill groups without crossing them: 2, 4, 8 or 16.
constexpr bool FitsGroups(size_t row_bytes) { return kGroupBytes % row_bytes == 0; }

}  // namespace wire
}  // namespace routing_replay
#endif  // PROTO_WIRE_BLOCK_ID_CHECK_TURNS_

HWY_BEFORE_NAMESPACE();
namespace routing_replay {
inline namespace wire {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

// For rows that fit into groups. Rotating each row by 1 … K/2 slots brings any two of its ids together, and the
// difference of equal ids is 0.
template <typename T>
RowsSeen SeeGroups(const uint8_t* ids, size_t size, size_t top_k, const Turns& turns) {
  const hn::ScalableTag<T> d;
  const hn::Repartition<uint8_t, decltype(d)> bytes;
  const size_t step = hn::Lanes(bytes);
  auto largest = hn::Zero(d);
  auto least_difference = hn::Set(d, static_cast<T>(~T{0}));
  const auto see = [&](const uint8_t* from) HWY_ATTR {
    const auto here = hn::LoadU(bytes, from);
    largest = hn::Max(largest, hn::BitCast(d, here));
    for (size_t turn = 0; turn < top_k / 2; ++turn) {
      const auto turned = hn::TableLookupBytes(here, hn::LoadDup128(bytes, turns.from[turn]));
      least_difference = hn::Min(least_difference, hn::BitCast(d, hn::Xor(here, turned)));
    }
  };
  size_t i = 0;
  for (; i + step <= size; i += step) see(ids + i);
  if (i < size && size > step) see(ids + size - step);
  if (size < step) {
    // Repeats the first row to fill up the vector.
    HWY_ALIGN uint8_t padded[HWY_MAX_BYTES];
    const size_t row_bytes = top_k * sizeof(T);
    for (size_t at = 0; at < step; at += row_bytes) std::memcpy(padded + at, at < size ? ids + at : ids, row_bytes);
    see(padded);
  }
  HWY_ALIGN T lane[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(largest, d, lane);
  return {*std::max_element(lane, lane + hn::Lanes(d)), !hn::AllFalse(d, hn::Eq(least_difference, hn::Zero(d)))};
}

#else

template <typename T>
RowsSeen SeeGroups(const uint8_t* ids, size_t size, size_t top_k, const Turns&) {
  RowsSeen seen;
  T row[kGroupBytes / sizeof(T)];
  for (const uint8_t* end = ids + size; ids != end; ids += top_k * sizeof(T)) {
    std::memcpy(row, ids, top_k * sizeof(T));
    for (size_t i = 0; i < top_k; ++i) {
      seen.largest_id = std::max<size_t>(seen.largest_id, row[i]);
      seen.duplicate = seen.duplicate || std::find(row, row + i, row[i]) != row + i;
    }
  }
  return seen;
}

#endif  // HWY_TARGET != HWY_SCALAR

// Compares every id with the one `shift` slots behind it, for all shifts. For each shift, `same_row` tells from each
// slot on which of the following lanes still have their partner in the same row: [top_k - 1][top_k + lanes] of 0 or ~0.
// Reads `top_k + lanes` ids behind the last one.
template <typename T>
bool HasDuplicate(const T* ids, size_t count, size_t top_k, const T* same_row, size_t row_stride) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  auto found = hn::Zero(d);
  size_t slot = 0;
  for (size_t i = 0; i < count; i += lanes) {
    const auto here = hn::LoadU(d, ids + i);
    for (size_t shift = 1; shift < top_k; ++shift) {
      const auto equal = hn::VecFromMask(d, hn::Eq(here, hn::LoadU(d, ids + i + shift)));
      found = hn::Or(found, hn::And(equal, hn::LoadU(d, same_row + (shift - 1) * row_stride + slot)));
    }
    slot = (slot + lanes) % top_k;
  }
  return !hn::AllTrue(d, hn::Eq(found, hn::Zero(d)));
}

size_t MaxIdU8(const uint8_t* ids, size_t count) { return LargestId<uint8_t>(ids, count); }
size_t MaxIdU16(const uint8_t* ids, size_t count) { return LargestId<uint16_t>(ids, count); }
RowsSeen SeeGroupsU8(const uint8_t* ids, size_t size, size_t k, const Turns& turns) {
  return SeeGroups<uint8_t>(ids, size, k, turns);
}
RowsSeen SeeGroupsU16(const uint8_t* ids, size_t size, size_t k, const Turns& turns) {
  return SeeGroups<uint16_t>(ids, size, k, turns);
}
bool HasDuplicateU8(const uint8_t* ids, size_t count, size_t k, const uint8_t* same_row, size_t stride) {
  return HasDuplicate(ids, count, k, same_row, stride);
}
bool HasDuplicateU16(const uint16_t* ids, size_t count, size_t k, const uint16_t* same_row, size_t stride) {
  return HasDuplicate(ids, count, k, same_row, stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace wire
}  // namespace routing_replay
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace routing_replay {
inline namespace wire {
namespace {

HWY_EXPORT(MaxIdU8);
HWY_EXPORT(MaxIdU16);
HWY_EXPORT(SeeGroupsU8);
HWY_EXPORT(SeeGroupsU16);
HWY_EXPORT(HasDuplicateU8);
HWY_EXPORT(HasDuplicateU16);

bool CallHasDuplicate(const uint8_t* ids, size_t n, size_t k, const uint8_t* same_row, size_t stride) {
  return HWY_DYNAMIC_DISPATCH(HasDuplicateU8)(ids, n, k, same_row, stride);
}
bool CallHasDuplicate(const uint16_t* ids, size_t n, size_t k, const uint16_t* same_row, size_t stride) {
  return HWY_DYNAMIC_DISPATCH(HasDuplicateU16)(ids, n, k, same_row, stride);
}

// At least as many lanes as any instruction set's vectors have. HWY_MAX_BYTES only covers the last set of this file.
constexpr size_t kMaxLanes = 256;

// The `same_row` argument of HasDuplicate; made once per K, because making it costs more than using it.
template <typename T>
const std::vector<T>& SameRow(size_t k) {
  static std::array<std::once_flag, kMaxTopK + 1> made;
  static auto& masks = *new std::array<std::vector<T>, kMaxTopK + 1>;
  std::call_once(made[k], [k] {
    const size_t stride = k + kMaxLanes;
    masks[k].resize((k - 1) * stride);
    for (size_t shift = 1; shift < k; ++shift) {
      for (size_t i = 0; i < stride; ++i) {
        masks[k][(shift - 1) * stride + i] = i % k + shift < k ? static_cast<T>(~T{0}) : T{0};
      }
    }
  });
  return masks[k];
}

// For rows that do not fit into groups. Works on a copy, because vectors read beyond the end.
template <typename T>
bool HasDuplicateAnywhere(absl::Span<const uint8_t> ids, size_t k) {
  const size_t count = ids.size() / sizeof(T);
  std::vector<T> padded(count + k + kMaxLanes);
  // Fills the space behind the last id with distinct values, so that the last vector finds no duplicate there.
  std::iota(padded.begin() + static_cast<int64_t>(count), padded.end(), T{0});
  if (count > 0) std::memcpy(padded.data(), ids.data(), count * sizeof(T));
  return CallHasDuplicate(padded.data(), count, k, SameRow<T>(k).data(), k + kMaxLanes);
}

constexpr Turns MakeTurns(size_t row_bytes, size_t id_bytes) {
  Turns turns{};
  for (size_t turn = 1; turn <= row_bytes / id_bytes / 2; ++turn) {
    for (size_t i = 0; i < kGroupBytes; ++i) {
      const size_t row = i / row_bytes * row_bytes;
      turns.from[turn - 1][i] = static_cast<uint8_t>(row + (i - row + turn * id_bytes) % row_bytes);
    }
  }
  return turns;
}

// Requires FitsGroups(row_bytes) and two or more ids in a row.
template <typename T>
const Turns& TurnsOf(size_t row_bytes) {
  static constexpr Turns kRows2 = MakeTurns(2, sizeof(T)), kRows4 = MakeTurns(4, sizeof(T)),
                         kRows8 = MakeTurns(8, sizeof(T)), kRows16 = MakeTurns(16, sizeof(T));
  if (row_bytes == 8) return kRows8;
  if (row_bytes == 16) return kRows16;
  return row_bytes == 4 ? kRows4 : kRows2;
}

template <typename T>
size_t LargestId(absl::Span<const uint8_t> ids) {
  const size_t count = ids.size() / sizeof(T);
  return sizeof(T) == 1 ? HWY_DYNAMIC_DISPATCH(MaxIdU8)(ids.data(), count)
                        : HWY_DYNAMIC_DISPATCH(MaxIdU16)(ids.data(), count);
}

// For rows of K >= 2 ids; requires at least one row.
template <typename T>
RowsSeen SeeRows(absl::Span<const uint8_t> ids, size_t k) {
  const size_t row_bytes = k * sizeof(T);
  if (!FitsGroups(row_bytes)) return {LargestId<T>(ids), HasDuplicateAnywhere<T>(ids, k)};
  const Turns& turns = TurnsOf<T>(row_bytes);
  return sizeof(T) == 1 ? HWY_DYNAMIC_DISPATCH(SeeGroupsU8)(ids.data(), ids.size(), k, turns)
                        : HWY_DYNAMIC_DISPATCH(SeeGroupsU16)(ids.data(), ids.size(), k, turns);
}

// Row by row, to find the values for the message.
template <typename T>
std::optional<IdFault> Locate(const LayerRouting& layer, absl::Span<const uint8_t> bytes, int64_t rows,
                              bool duplicates) {
  std::vector<T> ids(layer.top_k);
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(ids.data(), bytes.data() + row * ids.size() * sizeof(T), ids.size() * sizeof(T));
    for (auto id = ids.begin(); id != ids.end(); ++id) {
      if (*id >= layer.num_experts) return IdFault{IdFault::Kind::kRange, row, *id};
      if (duplicates && std::find(ids.begin(), id, *id) != id) return IdFault{IdFault::Kind::kDuplicate, row, *id};
    }
  }
  return std::nullopt;
}

template <typename T>
std::optional<IdFault> Find(const LayerRouting& layer, absl::Span<const uint8_t> bytes, int64_t rows, bool duplicates) {
  const auto k = static_cast<size_t>(layer.top_k);
  const absl::Span<const uint8_t> ids = bytes.first(rows * k * sizeof(T));
  const bool can_repeat = duplicates && k > 1 && rows > 0;
  const RowsSeen seen = can_repeat ? SeeRows<T>(ids, k) : RowsSeen{LargestId<T>(ids), false};
  if (seen.largest_id < static_cast<size_t>(layer.num_experts) && !seen.duplicate) return std::nullopt;
  return Locate<T>(layer, bytes, rows, duplicates);
}

}  // namespace

std::optional<IdFault> FindIdFault(const LayerRouting& layer, absl::Span<const uint8_t> ids, int64_t rows,
                                   bool duplicates) {
  return layer.id_bytes() == 1 ? Find<uint8_t>(layer, ids, rows, duplicates)
                               : Find<uint16_t>(layer, ids, rows, duplicates);
}

}  // namespace wire
}  // namespace routing_replay
#endif  // HWY_ONCE
