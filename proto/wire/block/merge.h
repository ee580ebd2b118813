// Merges the pieces of a window, and compares rows.
#ifndef PROTO_WIRE_BLOCK_MERGE_H_
#define PROTO_WIRE_BLOCK_MERGE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/block/block.h"

namespace routing_replay {
inline namespace wire {

// One block of codec `codec` (or RAW where PACKED does not shrink it) from parts whose rows follow each other without a
// gap inside one window. Every part's planes are verified against their CRC first: DATA_LOSS names row and layer. The
// result has the same bytes however the rows were split.
absl::StatusOr<Block> Merge(const Geometry& geometry, absl::Span<const BlockRows> parts, Codec codec);

// How many rows differ in at least one id of any layer. Both sides must have the same absolute rows; codecs may differ.
// Compares ids, not bytes.
int64_t CountDifferingRows(const Geometry& geometry, const BlockRows& a, const BlockRows& b);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_BLOCK_MERGE_H_
