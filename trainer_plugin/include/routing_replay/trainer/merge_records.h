// R2: merges what the ranks of a model replica recorded of one micro-batch into whole rows of its sequences.
//
//   index buffers of all (pp, chunk, cp, tp) ranks ─MergeRecords─▶ per sequence [MoE layer][row][K]
//
// Ranks have only their layers and local rows. Each rank's buffer layout and row map say which these are. The order of
// the records does not matter, unlike in reorder_and_merge_vpp_layers and pp_gather of verl, which join them by
// position.
#ifndef ROUTING_REPLAY_TRAINER_MERGE_RECORDS_H_
#define ROUTING_REPLAY_TRAINER_MERGE_RECORDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/trainer/rows.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {

// What one rank recorded of the layers of its stage, or of one of its chunks. Only refers to the caller's data.
struct RankRecord {
  const BufferLayout& layout;         // Its layers.
  const RowMap& row_map;              // BuildRowMap of the rank; as many rows as the layout.
  absl::Span<const uint8_t> indices;  // The index buffer, layout.bytes().
};

struct MergeOptions {
  std::optional<std::vector<int32_t>> ordinals;  // MoE layers to merge, in order; not set: all of the geometry.
  std::vector<std::string> samples;              // Names of the sequences in errors; may be empty.
};

// Decoded ids of one sequence, [ordinal][row][K]: a plane per layer, as BufferLayout has slabs. For all ordinals this
// is a RAW block of `rows` rows.
struct MergedSequence {
  int64_t rows = 0;  // recorded_rows of the layout.
  std::vector<uint8_t> planes;
};

// One entry per sequence of the layout. If several ranks have a row of a layer (tensor ranks without sequence
// parallelism), all of them must have the same ids. Ids themselves are not checked. FAILED_PRECONDITION naming sample,
// row and layer: kNotCommitted for a layer or rows that no record has, kConflictingRows if two records differ.
// INVALID_ARGUMENT for a record of another geometry (kGeometryMismatch) or size (kLength), and (kField) for ordinals
// that the geometry lacks.
absl::StatusOr<std::vector<MergedSequence>> MergeRecords(const Geometry& geometry, const MicroBatchLayout& layout,
                                                         absl::Span<const RankRecord> records,
                                                         const MergeOptions& options = {});

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_MERGE_RECORDS_H_
