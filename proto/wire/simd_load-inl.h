// Vector loads from bytes that lie anywhere. For files that Highway includes once per instruction set.
#if defined(PROTO_WIRE_SIMD_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTO_WIRE_SIMD_LOAD_INL_H_
#undef PROTO_WIRE_SIMD_LOAD_INL_H_
#else
#define PROTO_WIRE_SIMD_LOAD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace routing_replay {
inline namespace wire {
namespace HWY_NAMESPACE {

// As many T as the vector has, from an address of any alignment. As bytes: a copy into lanes becomes narrower stores,
// for which the load of the whole vector waits.
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

}  // namespace HWY_NAMESPACE
}  // namespace wire
}  // namespace routing_replay
HWY_AFTER_NAMESPACE();

#endif  // PROTO_WIRE_SIMD_LOAD_INL_H_
