#include "routing_replay/wire/checksum.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace routing_replay {

uint32_t Crc32c(absl::Span<const uint8_t> bytes) { return Crc32cExtend(0, bytes); }

uint32_t Crc32cExtend(uint32_t crc, absl::Span<const uint8_t> bytes) {
  // ISA-L takes the length as an int, and leaves the initial value and the final xor to the caller.
  constexpr size_t kPart = size_t{1} << 30;
  uint32_t state = ~crc;
  while (!bytes.empty()) {
    const size_t n = std::min(kPart, bytes.size());
    state = crc32_iscsi(const_cast<unsigned char*>(bytes.data()), static_cast<int>(n), state);
    bytes.remove_prefix(n);
  }
  return ~state;
}

}  // namespace routing_replay
