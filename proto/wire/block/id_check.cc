#include "proto/wire/block/id_check.h"

#include <algorithm>
#include <cstring>

#include "absl/types/span.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "proto/wire/block/id_check.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

#include "proto/wire/simd_bytes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace routing_replay {
inline namespace wire {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Duplicates are found by comparing each row with itself, rotated by 1 … K/2 slots, which pairs every two ids of the
// row. Equal ids have the difference 0. Legal evaluates the largest id and the least difference, lane by lane.
template <class D, typename T = hn::TFromD<D>>
bool Legal(D d, hn::Vec<D> largest_id, hn::Vec<D> least_difference, size_t max_id) {
  const auto max = hn::Set(d, static_cast<T>(max_id));
  return hn::AllTrue(d, hn::Eq(hn::Max(largest_id, max), max)) &&
         hn::AllFalse(d, hn::Eq(least_difference, hn::Zero(d)));
}

#if HWY_TARGET != HWY_SCALAR

constexpr size_t kGroupBytes = 16;  // TableLookupBytes moves bytes within groups of this many.

// Byte indices for TableLookupBytes that rotate each row in a group by 1, 2, … slots.
template <size_t kTurns>
struct Turns {
  alignas(kGroupBytes) uint8_t from[kTurns + 1][kGroupBytes] = {};

  constexpr Turns(size_t row_bytes, size_t id_bytes) {
    for (size_t turn = 1; turn <= kTurns; ++turn) {
      for (size_t i = 0; i < kGroupBytes; ++i) {
        const size_t row = i / row_bytes * row_bytes;
        from[turn][i] = static_cast<uint8_t>(row + (i - row + turn * id_bytes) % row_bytes);
      }
    }
  }
};

// For rows of 1, 2, 4, 8 or 16 bytes: no row crosses the end of a group.
template <typename T, size_t kTopK>
bool GroupsLegal(const uint8_t* ids, size_t size, size_t max_id) {
  static constexpr Turns<kTopK / 2> kTurns(kTopK * sizeof(T), sizeof(T));
  const hn::ScalableTag<T> d;
  const hn::Repartition<uint8_t, decltype(d)> bytes;
  const size_t step = hn::Lanes(bytes);
  auto largest_id = hn::Zero(d);
  auto least_difference = hn::Set(d, static_cast<T>(~T{0}));
  const auto see = [&](const uint8_t* from) HWY_ATTR {
    const auto here = hn::LoadU(bytes, from);
    largest_id = hn::Max(largest_id, hn::BitCast(d, here));
    auto least = hn::Set(d, static_cast<T>(~T{0}));
    for (size_t turn = 1; turn <= kTopK / 2; ++turn) {
      const auto turned = hn::TableLookupBytes(here, hn::LoadDup128(bytes, kTurns.from[turn]));
      least = hn::Min(least, hn::BitCast(d, hn::Xor(here, turned)));
    }
    least_difference = hn::Min(least_difference, least);
  };
  size_t i = 0;
  for (; i + step <= size; i += step) see(ids + i);
  if (i < size && size > step) see(ids + size - step);
  if (size < step) {
    // The rows fill less than a vector: fills the rest of it with copies of the first row.
    HWY_ALIGN uint8_t padded[HWY_MAX_BYTES];
    constexpr size_t kRowBytes = kTopK * sizeof(T);
    for (size_t at = 0; at < step; at += kRowBytes) std::memcpy(padded + at, at < size ? ids + at : ids, kRowBytes);
    see(padded);
  }
  return Legal(d, largest_id, least_difference, max_id);
}

#endif  // HWY_TARGET != HWY_SCALAR

// For rows of any length. It works on copies, because it reads before and after a row: a rotated row is loaded from
// `turn` slots further on, and slots that wrap around are loaded from K slots earlier.
template <typename T>
bool RowsLegal(const uint8_t* ids, size_t size, size_t top_k, size_t max_id) {
  constexpr size_t kPartBytes = 2048, kMaxRowBytes = kMaxTopK * sizeof(T);
  const hn::ScalableTag<T> d;
  const hn::RebindToSigned<decltype(d)> di;  // Slots are small, and signed numbers are cheaper to compare.
  const size_t lanes = hn::Lanes(d), row_bytes = top_k * sizeof(T), part_bytes = kPartBytes / row_bytes * row_bytes;
  HWY_ALIGN T first_slots[HWY_MAX_BYTES / sizeof(T)];
  for (size_t i = 0, slot = 0; i < lanes; ++i, slot = slot + 1 == top_k ? 0 : slot + 1) {
    first_slots[i] = static_cast<T>(slot);
  }
  const auto row_slots = hn::Set(d, static_cast<T>(top_k)), slots_ahead = hn::Set(d, static_cast<T>(lanes % top_k));
  auto largest_id = hn::Zero(d);
  auto least_difference = hn::Set(d, static_cast<T>(~T{0}));
  HWY_ALIGN uint8_t part[kMaxRowBytes + kPartBytes + HWY_MAX_BYTES + 2 * kMaxRowBytes];
  std::memset(part, 0, kMaxRowBytes);
  uint8_t* const begin = part + kMaxRowBytes;
  for (size_t at = 0; at < size; at += part_bytes) {
    const size_t bytes = std::min(part_bytes, size - at);
    std::memcpy(begin, ids + at, bytes);
    // Repeats the first row to fill the last vector and the bytes that are read after it.
    for (size_t i = bytes; i < bytes + lanes * sizeof(T) + row_bytes; i += row_bytes) {
      std::memcpy(begin + i, ids + at, row_bytes);
    }
    auto slots = hn::Load(d, first_slots);
    for (const uint8_t* from = begin; from < begin + bytes; from += lanes * sizeof(T)) {
      const auto here = LoadBytes(d, from);
      largest_id = hn::Max(largest_id, here);
      for (size_t turn = 1; turn <= top_k / 2; ++turn) {
        const auto stays =
            hn::Lt(hn::BitCast(di, slots), hn::Set(di, static_cast<hn::TFromD<decltype(di)>>(top_k - turn)));
        const auto ahead = LoadBytes(d, from + turn * sizeof(T)),
                   behind = LoadBytes(d, from + turn * sizeof(T) - row_bytes);
        const auto turned = hn::IfThenElse(hn::RebindMask(d, stays), ahead, behind);
        least_difference = hn::Min(least_difference, hn::Xor(here, turned));
      }
      // Adds modulo K: takes K off if the sum is at least K. Otherwise the subtraction wraps around to a large number,
      // and Min picks the sum.
      const auto next = hn::Add(slots, slots_ahead);
      slots = hn::Min(next, hn::Sub(next, row_slots));
    }
  }
  return Legal(d, largest_id, least_difference, max_id);
}

template <typename T>
bool IdsLegal(const uint8_t* ids, size_t size, size_t top_k, size_t max_id) {
#if HWY_TARGET != HWY_SCALAR
  switch (top_k) {
    case 1:
      return GroupsLegal<T, 1>(ids, size, max_id);
    case 2:
      return GroupsLegal<T, 2>(ids, size, max_id);
    case 4:
      return GroupsLegal<T, 4>(ids, size, max_id);
    case 8:
      return GroupsLegal<T, 8>(ids, size, max_id);
    case 16:
      if constexpr (sizeof(T) == 1) return GroupsLegal<T, 16>(ids, size, max_id);
  }
#endif
  return RowsLegal<T>(ids, size, top_k, max_id);
}

bool IdsOfBytesLegal(size_t id_bytes, const uint8_t* ids, size_t size, size_t top_k, size_t max_id) {
  return (id_bytes == 1 ? IdsLegal<uint8_t> : IdsLegal<uint16_t>)(ids, size, top_k, max_id);
}

}  // namespace HWY_NAMESPACE
}  // namespace wire
}  // namespace routing_replay
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace routing_replay {
inline namespace wire {
namespace {

HWY_EXPORT(IdsOfBytesLegal);

// Searches for the values to report in the error message.
template <typename T>
std::optional<IdFault> Locate(const LayerRouting& layer, absl::Span<const uint8_t> bytes, int64_t rows) {
  for (int64_t i = 0; i < rows * layer.top_k; ++i) {
    T id = 0;
    std::memcpy(&id, bytes.data() + i * sizeof(T), sizeof(T));
    if (id >= layer.num_experts) return IdFault{i / layer.top_k, id};
  }
  return std::nullopt;
}

}  // namespace

bool IdsLegal(absl::Span<const uint8_t> ids, int32_t id_bytes, int32_t top_k, int64_t limit) {
  return ids.empty() || HWY_DYNAMIC_DISPATCH(IdsOfBytesLegal)(id_bytes, ids.data(), ids.size(), top_k, limit - 1);
}

std::optional<IdFault> FindIdFault(const LayerRouting& layer, absl::Span<const uint8_t> ids, int64_t rows) {
  const auto used = ids.first(rows * layer.top_k * layer.id_bytes());
  if (IdsLegal(used, layer.id_bytes(), /*top_k=*/1, layer.num_experts)) return std::nullopt;
  return layer.id_bytes() == 1 ? Locate<uint8_t>(layer, ids, rows) : Locate<uint16_t>(layer, ids, rows);
}

}  // namespace wire
}  // namespace routing_replay
#endif  // HWY_ONCE
