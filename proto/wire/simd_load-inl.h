// Vector loads from unaligned bytes, and the largest of many ids there. For files that Highway includes once per
// instruction set.
#if defined(PROTO_WIRE_SIMD_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTO_WIRE_SIMD_LOAD_INL_H_
#undef PROTO_WIRE_SIMD_LOAD_INL_H_
#else
#define PROTO_WIRE_SIMD_LOAD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace routing_replay {
inline namespace wire {
namespace HWY_NAMESPACE {

// As many T as the vector has, from an address of any alignment. Loads bytes: copying into lanes would become narrower
// stores, and the load of the whole vector would wait for them.
template <class D, typename T = hwy::HWY_NAMESPACE::TFromD<D>>
hwy::HWY_NAMESPACE::Vec<D> LoadBytes(D d, const uint8_t* from) {
#if HWY_TARGET == HWY_SCALAR
  T lane;
  std::memcpy(&lane, from, sizeof(T));
  return hwy::HWY_NAMESPACE::Load(d, &lane);
#else
  const hwy::HWY_NAMESPACE::Repartition<uint8_t, D> bytes;
  return hwy::HWY_NAMESPACE::BitCast(d, hwy::HWY_NAMESPACE::LoadU(bytes, from));
#endif
}

// The largest of `count` unsigned ids; 0 if there are none.
template <typename T>
T LargestId(const uint8_t* ids, size_t count) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  auto largest = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) largest = hn::Max(largest, LoadBytes(d, ids + i * sizeof(T)));
  HWY_ALIGN T lane[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(largest, d, lane);
  T max = *std::max_element(lane, lane + lanes);
  for (; i < count; ++i) {
    T id;
    std::memcpy(&id, ids + i * sizeof(T), sizeof(T));
    max = std::max(max, id);
  }
  return max;
}

}  // namespace HWY_NAMESPACE
}  // namespace wire
}  // namespace routing_replay
HWY_AFTER_NAMESPACE();

#endif  // PROTO_WIRE_SIMD_LOAD_INL_H_
