// Token ids as hosts hold them.
#ifndef PROTO_WIRE_TOKEN_IDS_H_
#define PROTO_WIRE_TOKEN_IDS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/buffer.h"

namespace routing_replay {
inline namespace wire {

// An array of token ids: `dtype` as numpy calls it, of elements that lie little-endian, at any alignment.
struct TokenArray {
  std::string dtype;
  int32_t axes = 1;
  std::string field = "tokens";  // Names it in errors, …
  std::string sample;            // … as this does; may be empty.
  absl::Span<const uint8_t> bytes;
};

// Its ids as u32 little-endian. INVALID_ARGUMENT naming field and sample: kDType for what is not an integer, kShape for
// other than one axis, kLength for no ids at all (a caller that says nothing of tokens gives none) or bytes that are
// not whole ids, kField for an id that does not have 32 bits.
absl::StatusOr<Buffer> TokenIds(const TokenArray& array);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_TOKEN_IDS_H_
