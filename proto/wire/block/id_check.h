// Checks the ids of rows: range and duplicates in decoded tensors, the range alone in encoded blocks.
#ifndef PROTO_WIRE_BLOCK_ID_CHECK_H_
#define PROTO_WIRE_BLOCK_ID_CHECK_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {
inline namespace wire {

struct IdFault {
  int64_t row = 0;  // Index among the checked rows.
  int64_t id = 0;
};

// True if every id of `ids` is below `limit` and no row has the same id twice. `ids` are whole rows of `top_k` ids of
// `id_bytes` (1 or 2) bytes each; `limit` is above 0, and at most 256 for one byte. Uses the widest vectors of the CPU
// that it runs on: per vector of ids, a few instructions for the limit, and a number proportional to K for duplicates.
bool IdsLegal(absl::Span<const uint8_t> ids, int32_t id_bytes, int32_t top_k, int64_t limit);

// The first id outside [0, E) of `ids`, which are [rows][K] of layer.id_bytes() each. Nothing if there is none.
std::optional<IdFault> FindIdFault(const LayerRouting& layer, absl::Span<const uint8_t> ids, int64_t rows);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_BLOCK_ID_CHECK_H_
