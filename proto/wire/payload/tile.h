// Converts rows as an engine has them, all layers of a row side by side, to planes, all rows of a layer side by side.
#ifndef PROTO_WIRE_PAYLOAD_TILE_H_
#define PROTO_WIRE_PAYLOAD_TILE_H_

#include <cstdint>

#include "absl/types/span.h"

namespace routing_replay {
inline namespace wire {

// Copies `count` rows that begin at `rows` and lie `stride` bytes apart. A row holds `bytes` bytes (1 … 128) for each
// plane, side by side; a plane is [rows][bytes]. Planes must not overlap each other or the rows.
void Tile(const uint8_t* rows, int64_t stride, int64_t count, int64_t bytes, absl::Span<uint8_t* const> planes);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_TILE_H_
