// Headers of .npy files (NumPy format version 1.0; numpy.lib.format).
#ifndef PROTO_WIRE_PAYLOAD_NPY_H_
#define PROTO_WIRE_PAYLOAD_NPY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay {
inline namespace wire {

struct NpyHeader {
  DType dtype = DType::kUnspecified;
  std::vector<int64_t> shape;  // At most 4 axes, none negative.
  size_t data_offset = 0;      // Where the elements start.
};

// Reads the header. Accepts only |u1, |i1, <u2, <i2, <i4 and <i8 in C order; the header may have at most 1 KiB.
// INVALID_ARGUMENT with field "payload": kEncoding for a malformed header, kDType for another dtype, kShape for Fortran
// order or too many axes. Does not look at the bytes behind the header.
absl::StatusOr<NpyHeader> ParseNpyHeader(absl::Span<const uint8_t> file);

// Returns all bytes of a .npy file before its elements, a multiple of 64. `dtype` is one that ParseNpyHeader accepts.
std::string MakeNpyHeader(DType dtype, absl::Span<const int64_t> shape);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_NPY_H_
