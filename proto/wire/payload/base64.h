// Strict base64 (RFC 4648, standard alphabet, padding required, no white space, unused bits zero).
#ifndef PROTO_WIRE_PAYLOAD_BASE64_H_
#define PROTO_WIRE_PAYLOAD_BASE64_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/buffer.h"

namespace routing_replay {
inline namespace wire {

// The bytes that `text` stands for. INVALID_ARGUMENT (kEncoding, field "payload") saying where it is malformed.

absl::StatusOr<Buffer> DecodeBase64(absl::Span<const uint8_t> text);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_BASE64_H_
