// Token ids as hosts hold them.
#ifndef PROTO_CAPI_TOKEN_IDS_H_
#define PROTO_CAPI_TOKEN_IDS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/buffer.h"

namespace routing_replay::capi {

// An array of token ids: `dtype` as numpy calls it, of elements that lie little-endian, at any alignment.
struct TokenArray {
  std::string dtype;
  int32_t axes = 1;
  std::string field = "tokens";  // Names it in errors, …
  std::string sample;            // … as this does; may be empty.
  absl::Span<const uint8_t> bytes;
};
// Its ids as u32 little-endian; errors as below.
absl::StatusOr<Buffer> TokenIds(const TokenArray& array);

// The ids of an array as u32 little-endian. `description` is JSON: {"dtype": "int64", "axes": 1, "field":
// "append.token_ids", "sample": "a"}; dtype as numpy calls it, of elements that lie little-endian in `bytes`, which
// need not be aligned; sample may be absent.
//
// INVALID_ARGUMENT naming field and sample: kDType for what is no integer, kShape for other than one axis, kLength for
// no ids at all (a caller that says nothing of tokens gives none) or bytes that are not whole ids, kField for an id
// that does not have 32 bits.
absl::StatusOr<Buffer> TokenIds(absl::string_view description, absl::Span<const uint8_t> bytes);

}  // namespace routing_replay::capi

#endif  // PROTO_CAPI_TOKEN_IDS_H_
