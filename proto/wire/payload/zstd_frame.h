// One zstd frame of a declared size.
#ifndef PROTO_WIRE_PAYLOAD_ZSTD_FRAME_H_
#define PROTO_WIRE_PAYLOAD_ZSTD_FRAME_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/buffer.h"

namespace routing_replay {
inline namespace wire {

// Decompresses `frame`, which must be exactly one frame with content size `raw_size` and without a dictionary.
// INVALID_ARGUMENT: kLength if raw_size is above `limit` or not the frame's, kEncoding for everything else. Nothing
// larger than raw_size is allocated, and nothing before the sizes fit.
absl::StatusOr<Buffer> DecompressZstd(absl::Span<const uint8_t> frame, int64_t raw_size, int64_t limit);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_ZSTD_FRAME_H_
