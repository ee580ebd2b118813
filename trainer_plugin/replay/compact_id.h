// Compact ids in memory: one byte for E <= 256, else two, little-endian.
#ifndef TRAINER_PLUGIN_REPLAY_COMPACT_ID_H_
#define TRAINER_PLUGIN_REPLAY_COMPACT_ID_H_

#include <cstdint>

#include "trainer_plugin/replay/host_device.h"

namespace routing_replay::trainer {

// Id number `index` of an array at any alignment.
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

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_COMPACT_ID_H_
