// What an undecoded payload says of its shape: a look at its header or at its length.
#ifndef PROTO_WIRE_PAYLOAD_PAYLOAD_SHAPE_H_
#define PROTO_WIRE_PAYLOAD_PAYLOAD_SHAPE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay {
inline namespace wire {

struct TensorShape {
  DType dtype = DType::kUnspecified;
  std::vector<int64_t> axes;
};

// Dtype and axes of the payload's tensor: as described, if a shape is, else of the .npy header, if there is one and no
// compression before it. Elements are not looked at.
// INVALID_ARGUMENT: kShape if neither says it, kEncoding and kDType as ParseNpyHeader.
absl::StatusOr<TensorShape> PayloadShape(const TensorDescription& description, absl::Span<const uint8_t> payload);

// The rows of a flat payload (RAW or BASE64, uncompressed, dtype stated) whose rows are [layers, top_k], from its
// length. INVALID_ARGUMENT: kLength if it is not whole rows, kEncoding if it ends inside an element or cannot be
// base64, kField, kDType or kShape for a description or a row that is not flat.
absl::StatusOr<int64_t> FlatRows(const TensorDescription& description, int64_t layers, int64_t top_k,
                                 absl::Span<const uint8_t> payload);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_PAYLOAD_SHAPE_H_
