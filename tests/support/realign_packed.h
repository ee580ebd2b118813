// Executes packed plans on the CPU in the way a device does.
#ifndef TESTS_SUPPORT_REALIGN_PACKED_H_
#define TESTS_SUPPORT_REALIGN_PACKED_H_

#include <cstdint>
#include <cstring>

#include "trainer_plugin/replay/packed_realign.h"

namespace routing_replay::trainer {

// The buffers are those of Realign.
inline void RealignPacked(const uint8_t* packed, const uint8_t* staging, uint8_t* indices, RowState* states) {
  PackedHeader header;
  std::memcpy(&header, packed, sizeof(header));
  for (int64_t unit = 0; unit < NumUnits(header); ++unit) {
    for (int32_t lane = 0; lane < kUnitLanes; ++lane) RunUnit(lane, unit, packed, staging, indices, states);
  }
}

}  // namespace routing_replay::trainer

#endif  // TESTS_SUPPORT_REALIGN_PACKED_H_
