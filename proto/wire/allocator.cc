#include "routing_replay/wire/allocator.h"

#include <malloc.h>

#include <climits>

namespace routing_replay {

void TuneAllocator() {
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_MXFAST, 0);
  mallopt(M_TOP_PAD, 4 << 20);
}

}  // namespace routing_replay
