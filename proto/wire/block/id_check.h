// The rule for legal ids in a row, used for decoded tensors and for encoded blocks.
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
  int64_t row = 0;  // Counted within the given ids.
  int64_t id = 0;
};

// The first row of `ids` ([rows][K] of layer.id_bytes() each) that has an id outside [0, E) or, with `duplicates`, the
// same id twice. Nothing if all rows are legal. Legal rows cost a few vector instructions per 32 ids (K of them for
// duplicates), chosen for this CPU at run time.
std::optional<IdFault> FindIdFault(const LayerRouting& layer, absl::Span<const uint8_t> ids, int64_t rows,
                                   bool duplicates);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_BLOCK_ID_CHECK_H_
