// Decodes the wrappings of payloads: base64 and zstd.
#ifndef PROTO_WIRE_PAYLOAD_ENCODING_H_
#define PROTO_WIRE_PAYLOAD_ENCODING_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/buffer.h"

namespace routing_replay {
inline namespace wire {

// Decodes `text` strictly (RFC 4648, standard alphabet, padding required, no white space, unused bits zero).
// INVALID_ARGUMENT (kEncoding, field "payload") says where it is malformed.
absl::StatusOr<Buffer> DecodeBase64(absl::Span<const uint8_t> text);

// Decompresses `frame`, which must be exactly one frame with content size `raw_size` and without a dictionary.
// INVALID_ARGUMENT: kLength if raw_size is above `limit` or differs from the frame's size, kEncoding for everything
// else. Allocates nothing larger than raw_size, and nothing before the sizes are checked.
absl::StatusOr<Buffer> DecompressZstd(absl::Span<const uint8_t> frame, int64_t raw_size, int64_t limit);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_ENCODING_H_
