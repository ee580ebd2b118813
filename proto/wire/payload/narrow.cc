#include "proto/wire/payload/narrow.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "proto/wire/payload/narrow.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

#include "proto/wire/simd_bytes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace routing_replay {
inline namespace wire {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename From, typename To>
bool NarrowRows(const uint8_t* from, size_t stride, size_t rows, size_t count, uint8_t* to) {
  const hn::ScalableTag<From> d;
  const hn::Rebind<To, decltype(d)> d_to;
  const size_t lanes = hn::Lanes(d);
  auto seen = hn::Zero(d);
  From seen_alone = 0;
  for (size_t row = 0; row < rows; ++row, from += stride, to += count * sizeof(To)) {
    const auto narrow = [&](size_t i) HWY_ATTR {
      const auto v = LoadBytes(d, from + i * sizeof(From));
      seen = hn::Or(seen, v);
      StoreBytes(hn::TruncateTo(d_to, v), d_to, to + i * sizeof(To));
    };
    size_t i = 0;
    for (; i + lanes <= count; i += lanes) narrow(i);
    if (i < count && count >= lanes) {
      narrow(count - lanes);
      continue;
    }
    for (; i < count; ++i) {
      From value;
      std::memcpy(&value, from + i * sizeof(From), sizeof(From));
      seen_alone |= value;
      const To id = static_cast<To>(value);
      std::memcpy(to + i * sizeof(To), &id, sizeof(To));
    }
  }
  constexpr int kBits = 8 * sizeof(To);
  return seen_alone >> kBits == 0 && hn::AllTrue(d, hn::Eq(hn::ShiftRight<kBits>(seen), hn::Zero(d)));
}

// `element_bytes` is 1, 2, 4 or 8. Elements are read as unsigned numbers.
bool Narrow(size_t element_bytes, const uint8_t* from, size_t stride, size_t rows, size_t count, size_t id_bytes,
            uint8_t* to) {
  const bool to8 = id_bytes == 1;
  if (element_bytes == 8)
    return (to8 ? NarrowRows<uint64_t, uint8_t> : NarrowRows<uint64_t, uint16_t>)(from, stride, rows, count, to);
  if (element_bytes == 4)
    return (to8 ? NarrowRows<uint32_t, uint8_t> : NarrowRows<uint32_t, uint16_t>)(from, stride, rows, count, to);
  if (element_bytes == 2 && to8) return NarrowRows<uint16_t, uint8_t>(from, stride, rows, count, to);
  // Here the elements are not wider than the ids, so every element fits: copy it, or extend one byte to two.
  for (size_t row = 0; row < rows; ++row, from += stride, to += count * id_bytes) {
    if (element_bytes == id_bytes) {
      std::memcpy(to, from, count * id_bytes);
    } else {
      for (size_t i = 0; i < count; ++i) {
        to[2 * i] = from[i];
        to[2 * i + 1] = 0;
      }
    }
  }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace wire
}  // namespace routing_replay
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace routing_replay {
inline namespace wire {

HWY_EXPORT(Narrow);

int32_t DTypeBytes(DType dtype) {
  static constexpr int32_t kBytes[] = {0, 1, 1, 2, 2, 4, 8};  // Indexed by number.
  const auto number = static_cast<size_t>(dtype);
  return number < std::size(kBytes) ? kBytes[number] : 0;
}

int64_t NarrowLimit(DType dtype, int32_t num_experts) {
  return std::min(num_experts, dtype == DType::kI8 ? 128 : dtype == DType::kI16 ? 32768 : num_experts);
}

bool NarrowIds(DType dtype, const uint8_t* from, int64_t stride, int64_t rows, int64_t count, int32_t id_bytes,
               uint8_t* to) {
  if (rows * count == 0) return true;  // `from` and `to` may be null then.
  if (stride == count * DTypeBytes(dtype)) {
    count *= rows;
    rows = 1;
  }
  return HWY_DYNAMIC_DISPATCH(Narrow)(DTypeBytes(dtype), from, stride, rows, count, id_bytes, to);
}

int64_t ElementAt(DType dtype, const uint8_t* from, int64_t index) {
  const auto load = [&](auto value) {
    std::memcpy(&value, from + index * static_cast<int64_t>(sizeof(value)), sizeof(value));
    return static_cast<int64_t>(value);
  };
  switch (dtype) {
    case DType::kU8:
      return load(uint8_t{});
    case DType::kI8:
      return load(int8_t{});
    case DType::kU16:
      return load(uint16_t{});
    case DType::kI16:
      return load(int16_t{});
    case DType::kI32:
      return load(int32_t{});
    default:
      return load(int64_t{});
  }
}

}  // namespace wire
}  // namespace routing_replay
#endif  // HWY_ONCE
