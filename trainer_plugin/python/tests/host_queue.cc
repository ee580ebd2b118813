// Realigns a staged block on the CPU. Tests use it in place of the kernel of a GPU (host_queue.py).
#include <cstdint>

#include "tests/support/realign_packed.h"

extern "C" __attribute__((visibility("default"))) void host_realign(const uint8_t* block, int64_t staging_offset,
                                                                    uint8_t* indices, uint8_t* states) {
  routing_replay::trainer::RealignPacked(block, block + staging_offset, indices,
                                         reinterpret_cast<routing_replay::trainer::RowState*>(states));
}
