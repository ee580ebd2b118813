// Shared by the CPU code and the CUDA kernels: RR_HOST_DEVICE, and compact ids in memory (loads, stores, copies, filler
// ids).
#ifndef TRAINER_PLUGIN_REPLAY_COMPACT_ID_H_
#define TRAINER_PLUGIN_REPLAY_COMPACT_ID_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

// RR_HOST_DEVICE marks functions that the CPU code and the CUDA kernels share. In a kernel, RR_UNROLL unrolls the next
// loop, so that its arrays become registers, and RR_NO_UNROLL leaves a loop of few passes as it is, which saves
// registers.
#ifdef __CUDACC__
#define RR_HOST_DEVICE __host__ __device__
#define RR_UNROLL _Pragma("unroll")
#define RR_NO_UNROLL _Pragma("unroll 1")
#else
#define RR_HOST_DEVICE
#define RR_UNROLL
#define RR_NO_UNROLL
#endif

namespace routing_replay::trainer {

// Loads and stores id number `index` of an array with any alignment. A compact id has one byte for E <= 256, else two,
// little-endian.
RR_HOST_DEVICE inline uint32_t LoadId(const uint8_t* ids, int32_t id_bytes, int64_t index) {
  if (id_bytes == 1) return ids[index];
  return static_cast<uint32_t>(ids[2 * index]) | static_cast<uint32_t>(ids[2 * index + 1]) << 8;
}

RR_HOST_DEVICE inline void StoreId(uint8_t* ids, int32_t id_bytes, int64_t index, uint32_t id) {
  if (id_bytes == 1) {
    ids[index] = static_cast<uint8_t>(id);
  } else {
    ids[2 * index] = static_cast<uint8_t>(id);
    ids[2 * index + 1] = static_cast<uint8_t>(id >> 8);
  }
}

// Copies by many lanes in the widest loads and stores that the addresses allow.

// Copies with one load and one store of 16, 8, 4 or 1 bytes. Both addresses must be multiples of kBytes.
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

// Writes 16 zero bytes in one store, at a multiple of 16.
RR_HOST_DEVICE inline void ClearUnit(uint8_t* to) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
#else
  std::memset(to, 0, 16);
#endif
}

// Copies the part of one lane: every `lanes`-th of `units` adjacent units of kBytes, beginning with number `lane`.
template <int32_t kBytes>
RR_HOST_DEVICE inline void CopyUnits(int32_t lane, int32_t lanes, uint8_t* to, const uint8_t* from, int32_t units) {
  RR_NO_UNROLL
  for (int32_t i = lane; i < units; i += lanes) CopyUnit<kBytes>(to + i * kBytes, from + i * kBytes);
}

// Copies whole units of kBytes, and byte by byte what comes before the first multiple of kBytes and after the last
// unit. Both addresses must be equal modulo kBytes.
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

// Does the part of one lane in a copy of `bytes` bytes by `lanes` lanes. The ranges must not overlap.
RR_HOST_DEVICE inline void CopyBytes(int32_t lane, int32_t lanes, uint8_t* to, const uint8_t* from, int32_t bytes) {
  const uint32_t unlike = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(to) ^ reinterpret_cast<uintptr_t>(from));
  if (unlike % 16 == 0) return CopyAlike<16>(lane, lanes, to, from, bytes);
  if (unlike % 8 == 0) return CopyAlike<8>(lane, lanes, to, from, bytes);
  if (unlike % 4 == 0) return CopyAlike<4>(lane, lanes, to, from, bytes);
  CopyUnits<1>(lane, lanes, to, from, bytes);
}

// Filler: expert ids for rows without a route, spread evenly over the ranks of the expert-parallel group.
//
// Dispatchers need K distinct experts in every row, pads included. With o the ordinal of the row among the filler rows
// of this rank (counted after context-parallel slicing), j the slot, l the layer and G the group size:
//
//   a = o·K + j + l·G·K      rank = a mod G      local = ⌊a / G⌋ mod (E / G)      id = rank·(E / G) + local
//
// a mod E ↔ id is one to one if G divides E. So K <= E consecutive values of a give distinct ids, and any run of rows
// loads the ranks equally, up to one id. The term in l makes layers differ. Nothing is random: a recompute gives the
// same filler.

struct FillerShape {
  int32_t num_experts = 0;  // E <= 65535, a multiple of ep_size.
  int32_t top_k = 0;        // K <= E
  int32_t ep_size = 1;      // G
};

// Returns the id in slot `slot` of filler row `ordinal`. `layer`: index among all MoE layers of the model, so that the
// ids do not depend on the pipeline split. Only a mod E matters, so terms are first reduced mod E and fit into 32 bits.
RR_HOST_DEVICE inline uint16_t FillerId(const FillerShape& shape, uint32_t ordinal, uint32_t slot, uint32_t layer) {
  const uint32_t experts = static_cast<uint32_t>(shape.num_experts), top_k = static_cast<uint32_t>(shape.top_k);
  const uint32_t group = static_cast<uint32_t>(shape.ep_size), per_rank = experts / group;
  const uint32_t rows = (ordinal % experts + layer % experts * group % experts) % experts;
  const uint32_t a = (rows * top_k + slot) % experts;
  return static_cast<uint16_t>(a % group * per_rank + a / group % per_rank);
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_COMPACT_ID_H_
