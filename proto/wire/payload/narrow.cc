#include "proto/wire/payload/narrow.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "proto/wire/payload/narrow.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "proto/wire/simd_load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace routing_replay {
inline namespace wire {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
uint64_t MaxLane(const T* lanes, size_t count) {
  return count == 0 ? 0 : *std::max_element(lanes, lanes + count);
}

// Handles one element at a time: ends of vectors, and types without a vector form.
template <typename From, typename To>
uint64_t NarrowScalar(const uint8_t* from, size_t begin, size_t end, uint8_t* to) {
  uint64_t largest = 0;
  for (size_t i = begin; i < end; ++i) {
    From value;
    std::memcpy(&value, from + i * sizeof(From), sizeof(From));
    largest = std::max<uint64_t>(largest, value);
    const To narrow = static_cast<To>(value);
    std::memcpy(to + i * sizeof(To), &narrow, sizeof(To));
  }
  return largest;
}

template <typename To>
uint64_t Narrow32(const uint8_t* from, size_t count, uint8_t* to) {
  const hn::ScalableTag<uint32_t> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<To, decltype(d)> d_to;
  const size_t lanes = hn::Lanes(d);
  auto largest = hn::Zero(d);
  size_t i = 0;
  HWY_ALIGN To narrow[HWY_MAX_BYTES];
  for (; i + lanes <= count; i += lanes) {
    const auto v = LoadBytes(d, from + 4 * i);
    largest = hn::Max(largest, v);
    hn::StoreU(hn::DemoteTo(d_to, hn::BitCast(di, v)), d_to, narrow);
    std::memcpy(to + i * sizeof(To), narrow, lanes * sizeof(To));
  }
  HWY_ALIGN uint32_t lane[HWY_MAX_BYTES / 4];
  hn::Store(largest, d, lane);
  return std::max(MaxLane(lane, lanes), NarrowScalar<uint32_t, To>(from, i, count, to));
}

uint64_t Narrow16To8(const uint8_t* from, size_t count, uint8_t* to) {
  const hn::ScalableTag<uint16_t> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> d_to;
  const size_t lanes = hn::Lanes(d);
  auto largest = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto v = LoadBytes(d, from + 2 * i);
    largest = hn::Max(largest, v);
    hn::StoreU(hn::DemoteTo(d_to, hn::BitCast(di, v)), d_to, to + i);
  }
  HWY_ALIGN uint16_t lane[HWY_MAX_BYTES / 2];
  hn::Store(largest, d, lane);
  return std::max(MaxLane(lane, lanes), NarrowScalar<uint16_t, uint8_t>(from, i, count, to));
}

// Input and output have the same width.
template <typename T>
uint64_t CopyIds(const uint8_t* from, size_t count, uint8_t* to) {
  std::memcpy(to, from, count * sizeof(T));
  return LargestId<T>(from, count);
}

// `element_bytes` 1, 2, 4 or 8; elements are taken as unsigned.
uint64_t Narrow(size_t element_bytes, const uint8_t* from, size_t count, size_t id_bytes, uint8_t* to) {
  const bool to8 = id_bytes == 1;
  switch (element_bytes) {
    case 1:
      return to8 ? CopyIds<uint8_t>(from, count, to) : NarrowScalar<uint8_t, uint16_t>(from, 0, count, to);
    case 2:
      return to8 ? Narrow16To8(from, count, to) : CopyIds<uint16_t>(from, count, to);
    case 4:
      return to8 ? Narrow32<uint8_t>(from, count, to) : Narrow32<uint16_t>(from, count, to);
    default:
      return to8 ? NarrowScalar<uint64_t, uint8_t>(from, 0, count, to)
                 : NarrowScalar<uint64_t, uint16_t>(from, 0, count, to);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace wire
}  // namespace routing_replay
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace routing_replay {
inline namespace wire {

HWY_EXPORT(Narrow);

namespace {

// A negative i8 could pass for an id of a model with 256 experts.
uint64_t NegativesLargest(DType dtype, uint64_t largest) {
  const bool negative = dtype == DType::kI8 ? largest > 127 : dtype == DType::kI16 && largest > 32767;
  return negative ? UINT64_MAX : largest;
}

}  // namespace

int32_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kUnspecified:
      return 0;
    case DType::kU8:
    case DType::kI8:
      return 1;
    case DType::kU16:
    case DType::kI16:
      return 2;
    case DType::kI32:
      return 4;
    case DType::kI64:
      return 8;
  }
  return 0;
}

uint64_t NarrowIds(DType dtype, const uint8_t* from, int64_t count, int32_t id_bytes, uint8_t* to) {
  if (count == 0) return 0;  // Either pointer may be null then.
  return NegativesLargest(dtype, HWY_DYNAMIC_DISPATCH(Narrow)(DTypeBytes(dtype), from, count, id_bytes, to));
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
