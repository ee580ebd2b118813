// Vector loads and stores of unaligned bytes. For files that Highway includes once per instruction set.
#if defined(PROTO_WIRE_SIMD_BYTES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTO_WIRE_SIMD_BYTES_INL_H_
#undef PROTO_WIRE_SIMD_BYTES_INL_H_
#else
#define PROTO_WIRE_SIMD_BYTES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace routing_replay {
inline namespace wire {
namespace HWY_NAMESPACE {

// Loads a whole vector of T from an address of any alignment. It loads the vector as bytes and casts it. A memcpy into
// lanes might compile to several narrow stores, and the vector load after them would stall.
template <class D, typename T = hwy::HWY_NAMESPACE::TFromD<D>>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> LoadBytes(D d, const uint8_t* from) {
#if HWY_TARGET == HWY_SCALAR
  T lane;
  std::memcpy(&lane, from, sizeof(T));
  return hwy::HWY_NAMESPACE::Load(d, &lane);
#else
  const hwy::HWY_NAMESPACE::Repartition<uint8_t, D> bytes;
  return hwy::HWY_NAMESPACE::BitCast(d, hwy::HWY_NAMESPACE::LoadU(bytes, from));
#endif
}

template <class D, typename T = hwy::HWY_NAMESPACE::TFromD<D>>
HWY_INLINE void StoreBytes(hwy::HWY_NAMESPACE::Vec<D> lanes, D d, uint8_t* to) {
#if HWY_TARGET == HWY_SCALAR
  T lane;
  hwy::HWY_NAMESPACE::Store(lanes, d, &lane);
  std::memcpy(to, &lane, sizeof(T));
#else
  const hwy::HWY_NAMESPACE::Repartition<uint8_t, D> bytes;
  hwy::HWY_NAMESPACE::StoreU(hwy::HWY_NAMESPACE::BitCast(bytes, lanes), bytes, to);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace wire
}  // namespace routing_replay
HWY_AFTER_NAMESPACE();

#endif  // PROTO_WIRE_SIMD_BYTES_INL_H_
