// How often each expert was chosen in rows of a block.
#ifndef PROTO_WIRE_BLOCK_ID_COUNT_H_
#define PROTO_WIRE_BLOCK_ID_COUNT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/block/block.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {

// Adds to counts[e] how often id e stands in rows `rows` (absolute, non-empty, inside block.rows) of MoE layer
// `ordinal`; `counts` has the layer's E entries. The plane is verified against its stored CRC first: DATA_LOSS naming
// the layer if it does not fit, `counts` untouched. Pure and thread-safe.
absl::Status CountIds(const Geometry& geometry, const BlockView& block, int32_t ordinal, RowRange rows,
                      absl::Span<int64_t> counts);

}  // namespace routing_replay

#endif  // PROTO_WIRE_BLOCK_ID_COUNT_H_
