// Converts rows as an engine has them, all layers of a row side by side, to planes, all rows of a layer side by side.
#ifndef PROTO_WIRE_PAYLOAD_TILE_H_
#define PROTO_WIRE_PAYLOAD_TILE_H_

#include <cstdint>

#include "absl/types/span.h"

namespace routing_replay {
inline namespace wire {

// One layer: its ids are `bytes` bytes at `offset` in each row, and go to `plane`, [rows][bytes].
struct TileColumn {
  int64_t offset = 0;
  int64_t bytes = 0;
  uint8_t* plane = nullptr;
};

// Copies `count` rows that begin at `rows` and lie `stride` bytes apart. Planes must not overlap each other or the
// rows.
void Tile(const uint8_t* rows, int64_t stride, int64_t count, absl::Span<const TileColumn> columns);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_TILE_H_
