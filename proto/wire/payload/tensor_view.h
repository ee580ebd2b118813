// Locates the elements of a payload and checks sizes, without reading the elements. OpenTensor handles the whole
// payload; PayloadShape reads its header alone.
#ifndef PROTO_WIRE_PAYLOAD_TENSOR_VIEW_H_
#define PROTO_WIRE_PAYLOAD_TENSOR_VIEW_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/buffer.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay {
inline namespace wire {

// [rows][layers][top_k] little-endian elements in C order, at any alignment. Points into the payload or into the
// buffers kept beside it.
struct TensorView {
  DType dtype = DType::kUnspecified;
  int64_t rows = 0;
  int64_t layers = 0;
  int64_t top_k = 0;
  absl::Span<const uint8_t> elements;

  Buffer decompressed;
  Buffer decoded;

  int64_t row_elements() const { return layers * top_k; }
};

// Undoes compression and encoding, and checks that dtype, shape and length fit each other. Errors are INVALID_ARGUMENT
// with the reasons that DecodeTensor lists.
absl::StatusOr<TensorView> OpenTensor(const TensorDescription& description, absl::Span<const uint8_t> payload,
                                      int64_t max_payload_bytes);

// Keeps only the slots `take` of the first axis, without a copy. INVALID_ARGUMENT (kField, "append.tensor.take") if
// some do not exist; `view` is untouched then.
absl::Status TakeSlots(RowRange take, TensorView& view);

// The dtype and shape of a payload's tensor.
struct TensorShape {
  DType dtype = DType::kUnspecified;
  std::vector<int64_t> axes;
};

// Returns the dtype and axes of the payload's tensor without reading its elements. They come from the description if it
// has a shape, otherwise from the .npy header of an uncompressed payload. INVALID_ARGUMENT: kShape if neither states
// them; the errors of ParseNpyHeader for a .npy header.
absl::StatusOr<TensorShape> PayloadShape(const TensorDescription& description, absl::Span<const uint8_t> payload);

// Decodes `text` strictly (RFC 4648, standard alphabet, padding required, no white space, unused bits zero).
// INVALID_ARGUMENT (kEncoding, field "payload") says where it is malformed.
absl::StatusOr<Buffer> DecodeBase64(absl::Span<const uint8_t> text);

// Decompresses `frame`, which must be exactly one frame with content size `raw_size` and without a dictionary.
// INVALID_ARGUMENT: kLength if raw_size is above `limit`, or differs from the size that the frame states or has;
// kEncoding for everything else. Allocates nothing larger than raw_size, and nothing before the sizes are checked.
absl::StatusOr<Buffer> DecompressZstd(absl::Span<const uint8_t> frame, int64_t raw_size, int64_t limit);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_TENSOR_VIEW_H_
