// Tiling of 8-byte columns, the ids of K = 8 experts in a byte each: a transposition of words, done in vectors.
#ifndef PROTO_WIRE_PAYLOAD_TILE_WORDS_H_
#define PROTO_WIRE_PAYLOAD_TILE_WORDS_H_

#include <cstdint>

#include "absl/types/span.h"

namespace routing_replay {
inline namespace wire {

// Word i of row r, at rows + r · stride + 8 · i, goes to planes[i] + 8 · r, for r in [0, count). No alignment is
// needed. Planes must not overlap each other or the rows.
void TileWords(const uint8_t* rows, int64_t stride, int64_t count, absl::Span<uint8_t* const> planes);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_TILE_WORDS_H_
