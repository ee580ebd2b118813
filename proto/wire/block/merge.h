// Merges the pieces of a window, and compares rows.
#ifndef PROTO_WIRE_BLOCK_MERGE_H_
#define PROTO_WIRE_BLOCK_MERGE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/block/block.h"

namespace routing_replay {
inline namespace wire {

// Merges `parts` into one block. The parts must lie in one window, and their rows must follow each other without a gap.
// The block has the codec `codec`, or RAW if PACKED would not make it smaller. Every plane is checked against its CRC
// first: DATA_LOSS names row and layer. The bytes of the result do not depend on how the rows were split into parts.
absl::StatusOr<Block> Merge(const Geometry& geometry, absl::Span<const BlockRows> parts, Codec codec);

// How many rows differ in at least one id of any layer. `a` and `b` must have the same absolute rows. Compares ids, not
// bytes, so that the codecs may differ.
int64_t CountDifferingRows(const Geometry& geometry, const BlockRows& a, const BlockRows& b);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_BLOCK_MERGE_H_
