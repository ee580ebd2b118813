// Copies by many lanes in the widest loads and stores that the addresses allow, shared by the CPU code and the CUDA
// kernels.
#ifndef TRAINER_PLUGIN_REPLAY_COPY_UNIT_H_
#define TRAINER_PLUGIN_REPLAY_COPY_UNIT_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "trainer_plugin/replay/host_device.h"

namespace routing_replay::trainer {

// One load and one store of 16, 8, 4 or 1 bytes. Both addresses are multiples of kBytes.
template <int32_t kBytes>
RR_HOST_DEVICE inline void CopyUnit(uint8_t* to, const uint8_t* from) {
#ifdef __CUDA_ARCH__
  using Narrow = std::conditional_t<kBytes == 4, uint32_t, uint8_t>;
  using Word = std::conditional_t<kBytes == 16, uint4, std::conditional_t<kBytes == 8, uint2, Narrow>>;
  *reinterpret_cast<Word*>(to) = *reinterpret_cast<const Word*>(from);
#else
  std::memcpy(to, from, kBytes);
#endif
}

// 16 zeros in one store, at a multiple of 16.
RR_HOST_DEVICE inline void ClearUnit(uint8_t* to) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
#else
  std::memset(to, 0, 16);
#endif
}

// Lane `lane`'s part of `units` units next to each other.
template <int32_t kBytes>
RR_HOST_DEVICE inline void CopyUnits(int32_t lane, int32_t lanes, uint8_t* to, const uint8_t* from, int32_t units) {
  RR_NO_UNROLL
  for (int32_t i = lane; i < units; i += lanes) CopyUnit<kBytes>(to + i * kBytes, from + i * kBytes);
}

// Bytes before the first multiple of kBytes, units, bytes behind the last one. Requires addresses that are alike modulo
// kBytes.
template <int32_t kBytes>
RR_HOST_DEVICE inline void CopyAlike(int32_t lane, int32_t lanes, uint8_t* to, const uint8_t* from, int32_t bytes) {
  const int32_t past = static_cast<int32_t>(reinterpret_cast<uintptr_t>(to) % kBytes);
  const int32_t before = past == 0 ? 0 : kBytes - past < bytes ? kBytes - past : bytes;
  const int32_t units = (bytes - before) / kBytes;
  const int32_t behind = before + units * kBytes;
  CopyUnits<1>(lane, lanes, to, from, before);
  CopyUnits<kBytes>(lane, lanes, to + before, from + before, units);
  CopyUnits<1>(lane, lanes, to + behind, from + behind, bytes - behind);
}

// Lane `lane`'s part of a copy of `bytes` bytes by `lanes` lanes. The ranges must not overlap.
RR_HOST_DEVICE inline void CopyBytes(int32_t lane, int32_t lanes, uint8_t* to, const uint8_t* from, int32_t bytes) {
  const uint32_t unlike = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(to) ^ reinterpret_cast<uintptr_t>(from));
  if (unlike % 16 == 0) return CopyAlike<16>(lane, lanes, to, from, bytes);
  if (unlike % 8 == 0) return CopyAlike<8>(lane, lanes, to, from, bytes);
  if (unlike % 4 == 0) return CopyAlike<4>(lane, lanes, to, from, bytes);
  CopyUnits<1>(lane, lanes, to, from, bytes);
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_COPY_UNIT_H_
