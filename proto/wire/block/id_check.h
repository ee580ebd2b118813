// What makes the ids of a row legal: the one rule for decoded tensors and for blocks that come encoded.
#ifndef PROTO_WIRE_BLOCK_ID_CHECK_H_
#define PROTO_WIRE_BLOCK_ID_CHECK_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {
inline namespace wire {

struct IdFault {
  enum class Kind { kRange, kDuplicate };
  Kind kind = Kind::kRange;
  int64_t row = 0;  // Within the ids given.
  int64_t id = 0;
};

// The first row of `ids` ([rows][K] of layer.id_bytes() each) with an id that is not in [0, E) or, with `duplicates`,
// occurs twice in it; nothing if all rows are legal. Legal rows cost a few vector instructions per 32 ids (K of them
// for duplicates), chosen for this CPU at run time.
std::optional<IdFault> FindIdFault(const LayerRouting& layer, absl::Span<const uint8_t> ids, int64_t rows,
                                   bool duplicates);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_BLOCK_ID_CHECK_H_
