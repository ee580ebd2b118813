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

// Reads the header. Only little-endian (or one-byte) integers in C order are taken; the header may have at most 1 KiB.
// INVALID_ARGUMENT: kEncoding for a malformed header, kDType for another dtype, kShape for Fortran order or too many
// axes. Field "payload". The bytes behind the header are not looked at.
absl::StatusOr<NpyHeader> ParseNpyHeader(absl::Span<const uint8_t> file);

// What stands before the elements of such a file: a multiple of 64 bytes. `dtype` is one of the header's.
std::string MakeNpyHeader(DType dtype, absl::Span<const int64_t> shape);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_NPY_H_
