// CRC32C (Castagnoli, reflected, initial value and final xor 0xFFFFFFFF: the CRC of iSCSI, RFC 3720) and token checks.
#ifndef ROUTING_REPLAY_WIRE_CHECKSUM_H_
#define ROUTING_REPLAY_WIRE_CHECKSUM_H_

#include <cstdint>

#include "absl/types/span.h"

namespace routing_replay {

// CRC32C of `bytes`; 0 if there are none. Picks the fastest instructions of this CPU at run time.
uint32_t Crc32c(absl::Span<const uint8_t> bytes);
// CRC32C of A + bytes, given `crc` = CRC32C of A. Crc32cExtend(0, x) == Crc32c(x).
uint32_t Crc32cExtend(uint32_t crc, absl::Span<const uint8_t> bytes);

// The token check of n tokens is CRC32C over their ids as u32 little-endian, positions 0 … n - 1 (0 for n = 0). This
// extends the check of the earlier tokens by `token_ids` (already u32 little-endian bytes, 4 per token).
inline uint32_t TokenCheckExtend(uint32_t check, absl::Span<const uint8_t> token_ids) {
  return Crc32cExtend(check, token_ids);
}

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_WIRE_CHECKSUM_H_
