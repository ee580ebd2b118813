// Which columns of a payload's layer axis are which MoE layers.
#ifndef PROTO_WIRE_PAYLOAD_COLUMNS_H_
#define PROTO_WIRE_PAYLOAD_COLUMNS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay {
inline namespace wire {

// The column of every MoE layer, by ordinal. `layers` is the length of the layer axis. INVALID_ARGUMENT (kShape,
// kField) naming the field and the layer.
absl::StatusOr<std::vector<int32_t>> MoeColumns(const Geometry& geometry, const TensorDescription& description,
                                                int64_t layers);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_COLUMNS_H_
