// The format of a packed plan, and the execution of its units: shared by the CPU code and the CUDA kernel.
//
// A unit is the work of 32 lanes: a warp on the GPU. The lanes do not interact, so a CPU may run them one after the
// other. Offsets always have 64 bits; counts inside a unit are small.
#ifndef TRAINER_PLUGIN_REPLAY_PACKED_REALIGN_H_
#define TRAINER_PLUGIN_REPLAY_PACKED_REALIGN_H_

#include <cstdint>

#include "routing_replay/trainer/row_map.h"
#include "trainer_plugin/replay/compact_id.h"

namespace routing_replay::trainer {

inline constexpr int32_t kUnitLanes = 32;
inline constexpr int32_t kUnitIds = 1024;
inline constexpr int32_t kUnitFills = 32;
inline constexpr int32_t kUnitStates = 1024;

// Format: header | layers | copies | fills | states, each at a multiple of 16 bytes.
struct PackedHeader {
  int64_t copies_offset = 0;  // Offsets from the beginning of the header. The layers follow the header directly.
  int64_t fills_offset = 0;
  int64_t states_offset = 0;
  int64_t num_copies = 0;
  int64_t num_fills = 0;
  int64_t num_rows = 0;
  int32_t num_layers = 0;
  int32_t ep_size = 1;
  int64_t padding = 0;
};
static_assert(sizeof(PackedHeader) == 64);

struct PackedLayer {
  int64_t slab_offset = 0;
  int32_t num_experts = 0;
  int32_t top_k = 0;
  int32_t id_bytes = 0;
  int32_t ordinal = 0;
};
static_assert(sizeof(PackedLayer) == 24);

// A copy of `ids` ids: from bit `first_bit` of the staging buffer, id_bits bits each, to byte `target` of the index
// buffer, id_bytes bytes each. RAW ids have 8 · id_bytes bits.
struct PackedCopy {
  int64_t first_bit = 0;
  int64_t target = 0;
  int32_t ids = 0;
  int16_t id_bits = 0;
  int16_t id_bytes = 0;
};
static_assert(sizeof(PackedCopy) == 24);

struct PackedFill {
  int32_t local_row = 0;
  int32_t ordinal = 0;
};

RR_HOST_DEVICE inline int64_t UnitsOf(int64_t count, int64_t unit) { return (count + unit - 1) / unit; }

RR_HOST_DEVICE inline int64_t NumUnits(const PackedHeader& header) {
  return header.num_copies + header.num_layers * UnitsOf(header.num_fills, kUnitFills) +
         UnitsOf(header.num_rows, kUnitStates);
}

// Reads `bits` bits (at most 16), LSB first, starting at bit `bit`. Touches no byte behind the last of these bits.
RR_HOST_DEVICE inline uint32_t LoadBits(const uint8_t* bytes, int64_t bit, int32_t bits) {
  const uint8_t* first = bytes + bit / 8;
  const int32_t shift = static_cast<int32_t>(bit % 8);
  uint32_t word = first[0];
  if (shift + bits > 8) word |= static_cast<uint32_t>(first[1]) << 8;
  if (shift + bits > 16) word |= static_cast<uint32_t>(first[2]) << 16;
  return word >> shift & ((1u << bits) - 1);
}

RR_HOST_DEVICE inline void CopyIds(int32_t lane, const PackedCopy& copy, const uint8_t* staging, uint8_t* indices) {
  uint8_t* target = indices + copy.target;
  if (copy.id_bits == 8 * copy.id_bytes) {
    return CopyBytes(lane, kUnitLanes, target, staging + copy.first_bit / 8, copy.ids * copy.id_bytes);
  }
  for (int32_t i = lane; i < copy.ids; i += kUnitLanes) {
    StoreId(target, copy.id_bytes, i, LoadBits(staging, copy.first_bit + int64_t{i} * copy.id_bits, copy.id_bits));
  }
}

RR_HOST_DEVICE inline void FillRows(int32_t lane, const PackedLayer& layer, int32_t ep_size, const PackedFill* fills,
                                    int32_t count, uint8_t* indices) {
  const FillerShape shape{layer.num_experts, layer.top_k, ep_size};
  uint8_t* slab = indices + layer.slab_offset;
  for (int32_t i = lane; i < count * layer.top_k; i += kUnitLanes) {
    const PackedFill& fill = fills[i / layer.top_k];
    const int32_t slot = i % layer.top_k;
    StoreId(slab, layer.id_bytes, int64_t{fill.local_row} * layer.top_k + slot,
            FillerId(shape, fill.ordinal, slot, layer.ordinal));
  }
}

// Does the share of lane `lane` (0 … kUnitLanes - 1) in the work of unit `unit` (0 … NumUnits - 1). First come the
// units that copy ids, one per copy; then those that fill rows, up to kUnitFills rows of one layer each; then those
// that write up to kUnitStates row states.
RR_HOST_DEVICE inline void RunUnit(int32_t lane, int64_t unit, const uint8_t* packed, const uint8_t* staging,
                                   uint8_t* indices, RowState* states) {
  const PackedHeader& header = *reinterpret_cast<const PackedHeader*>(packed);
  if (unit < header.num_copies) {
    return CopyIds(lane, reinterpret_cast<const PackedCopy*>(packed + header.copies_offset)[unit], staging, indices);
  }
  // The number of filler units, rows / 32 · layers, fits into 32 bits, and 32-bit division is faster.
  unit -= header.num_copies;
  const auto fill_units = static_cast<uint32_t>(UnitsOf(header.num_fills, kUnitFills));
  if (unit < header.num_layers * int64_t{fill_units}) {
    const auto* layers = reinterpret_cast<const PackedLayer*>(packed + sizeof(PackedHeader));
    const auto* fills = reinterpret_cast<const PackedFill*>(packed + header.fills_offset);
    const auto fill_unit = static_cast<uint32_t>(unit);
    const int64_t first = int64_t{fill_unit % fill_units} * kUnitFills;
    const int64_t left = header.num_fills - first;
    return FillRows(lane, layers[fill_unit / fill_units], header.ep_size, fills + first,
                    static_cast<int32_t>(left < kUnitFills ? left : kUnitFills), indices);
  }
  const int64_t first = (unit - header.num_layers * int64_t{fill_units}) * kUnitStates;
  const int64_t left = header.num_rows - first;
  CopyBytes(lane, kUnitLanes, reinterpret_cast<uint8_t*>(states) + first, packed + header.states_offset + first,
            static_cast<int32_t>(left < kUnitStates ? left : kUnitStates));
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_PACKED_REALIGN_H_
