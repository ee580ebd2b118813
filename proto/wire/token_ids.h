// Token ids in the arrays of callers.
#ifndef PROTO_WIRE_TOKEN_IDS_H_
#define PROTO_WIRE_TOKEN_IDS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/buffer.h"

namespace routing_replay {
inline namespace wire {

// An array of token ids: little-endian elements of `dtype` (numpy's name), at any alignment.
struct TokenArray {
  std::string dtype;
  int32_t axes = 1;
  std::string field = "tokens";  // The argument's name, for errors.
  std::string sample;            // The sample's id, for errors; may be empty.
  absl::Span<const uint8_t> bytes;
};

// Returns the ids as little-endian u32. INVALID_ARGUMENT that names field and sample: kDType if the dtype is not an
// integer, kShape if there is not exactly one axis, kLength if there are no ids (a caller without tokens passes no
// array) or the last id is incomplete, kField for an id that does not fit 32 bits.
absl::StatusOr<Buffer> TokenIds(const TokenArray& array);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_TOKEN_IDS_H_
