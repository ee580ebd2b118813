#include "proto/wire/block/id_check.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <numeric>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "proto/wire/block/id_check.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace routing_replay {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
T MaxId(const T* ids, size_t count) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  auto largest = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) largest = hn::Max(largest, hn::LoadU(d, ids + i));
  HWY_ALIGN T lane[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(largest, d, lane);
  T max = *std::max_element(lane, lane + lanes);
  for (; i < count; ++i) max = std::max(max, ids[i]);
  return max;
}

// Compares every id with the one `shift` slots behind it, for all shifts. `same_row` says for each shift, from each
// slot on, which of the following lanes still have their partner in the same row: [top_k - 1][top_k + lanes] of 0 or
// ~0. Reads `top_k + lanes` ids behind the last one.
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

size_t MaxIdU8(const uint8_t* ids, size_t count) { return MaxId(ids, count); }
size_t MaxIdU16(const uint16_t* ids, size_t count) { return MaxId(ids, count); }
bool HasDuplicateU8(const uint8_t* ids, size_t count, size_t k, const uint8_t* same_row, size_t stride) {
  return HasDuplicate(ids, count, k, same_row, stride);
}
bool HasDuplicateU16(const uint16_t* ids, size_t count, size_t k, const uint16_t* same_row, size_t stride) {
  return HasDuplicate(ids, count, k, same_row, stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace routing_replay
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace routing_replay {
namespace {

HWY_EXPORT(MaxIdU8);
HWY_EXPORT(MaxIdU16);
HWY_EXPORT(HasDuplicateU8);
HWY_EXPORT(HasDuplicateU16);

size_t CallMaxId(const uint8_t* ids, size_t n) { return HWY_DYNAMIC_DISPATCH(MaxIdU8)(ids, n); }
size_t CallMaxId(const uint16_t* ids, size_t n) { return HWY_DYNAMIC_DISPATCH(MaxIdU16)(ids, n); }
bool CallHasDuplicate(const uint8_t* ids, size_t n, size_t k, const uint8_t* same_row, size_t stride) {
  return HWY_DYNAMIC_DISPATCH(HasDuplicateU8)(ids, n, k, same_row, stride);
}
bool CallHasDuplicate(const uint16_t* ids, size_t n, size_t k, const uint16_t* same_row, size_t stride) {
  return HWY_DYNAMIC_DISPATCH(HasDuplicateU16)(ids, n, k, same_row, stride);
}

// At least the lanes of any instruction set's vector. HWY_MAX_BYTES would be those of this file's last one only.
constexpr size_t kMaxLanes = 256;

// What HasDuplicate takes as `same_row`; made once per K, because making it costs more than using it.
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

template <typename T>
bool AnyDuplicate(const std::vector<T>& padded_ids, size_t count, size_t k) {
  return CallHasDuplicate(padded_ids.data(), count, k, SameRow<T>(k).data(), k + kMaxLanes);
}

// Row by row, for the message.
template <typename T>
std::optional<IdFault> Locate(const LayerRouting& layer, const std::vector<T>& ids, int64_t rows, bool duplicates) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* first = ids.data() + row * layer.top_k;
    for (int32_t i = 0; i < layer.top_k; ++i) {
      if (first[i] >= layer.num_experts) return IdFault{IdFault::Kind::kRange, row, first[i]};
      if (duplicates && std::find(first, first + i, first[i]) != first + i) {
        return IdFault{IdFault::Kind::kDuplicate, row, first[i]};
      }
    }
  }
  return std::nullopt;
}

template <typename T>
std::optional<IdFault> Find(const LayerRouting& layer, absl::Span<const uint8_t> bytes, int64_t rows, bool duplicates) {
  const auto k = static_cast<size_t>(layer.top_k);
  const size_t count = rows * k;
  std::vector<T> ids(count + k + kMaxLanes);
  // Behind the last id all differ: what the last vector reads there is no duplicate.
  std::iota(ids.begin() + static_cast<int64_t>(count), ids.end(), T{0});
  if (count > 0) std::memcpy(ids.data(), bytes.data(), count * sizeof(T));
  const bool in_range = CallMaxId(ids.data(), count) < static_cast<size_t>(layer.num_experts);
  if (in_range && !(duplicates && k > 1 && AnyDuplicate(ids, count, k))) return std::nullopt;
  return Locate(layer, ids, rows, duplicates);
}

}  // namespace

std::optional<IdFault> FindIdFault(const LayerRouting& layer, absl::Span<const uint8_t> ids, int64_t rows,
                                   bool duplicates) {
  return layer.id_bytes() == 1 ? Find<uint8_t>(layer, ids, rows, duplicates)
                               : Find<uint16_t>(layer, ids, rows, duplicates);
}

}  // namespace routing_replay
#endif  // HWY_ONCE
