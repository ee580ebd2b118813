// For R2 (replay of the trainer's own choice): merges what the ranks of a model replica recorded of one micro-batch
// into whole rows of its sequences.
//
//   index buffers of all (pp, chunk, cp, tp) ranks ─MergeRecords─▶ per sequence [MoE layer][row][K]
//
// Each rank has recorded only its own layers and local rows; its buffer layout and row map say which. The order of the
// records does not matter. (verl's reorder_and_merge_vpp_layers and pp_gather join records by position instead.)
#ifndef ROUTING_REPLAY_TRAINER_MERGE_RECORDS_H_
#define ROUTING_REPLAY_TRAINER_MERGE_RECORDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/trainer/rows.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {

// What one rank recorded for the layers of its stage, or of one of its chunks. Refers to the caller's data.
struct RankRecord {
  const BufferLayout& layout;         // The layout of `indices`, with the rank's layers.
  const RowMap& row_map;              // Of BuildRowMap for the rank; as many rows as `layout`.
  absl::Span<const uint8_t> indices;  // The rank's index buffer, layout.bytes() bytes.
};

// Decoded ids of one sequence, [ordinal][row][K]: one plane per MoE layer of the geometry, laid out like the slabs of a
// BufferLayout. These bytes are also a RAW block of `rows` rows.
struct MergedSequence {
  int64_t rows = 0;  // SequenceShape::recorded_rows of the sequence.
  std::vector<uint8_t> planes;
};

// Returns one entry per sequence of the layout. `samples` names the sequences in errors, or is empty. If several ranks
// have the same row of the same layer (tensor ranks without sequence parallelism), their ids must be equal. Otherwise
// ids are not checked. FAILED_PRECONDITION names sample, row and layer: kNotCommitted for a layer or rows that no
// record has, kConflictingRows if two records differ. INVALID_ARGUMENT if a record has another geometry
// (kGeometryMismatch) or size (kLength).
absl::StatusOr<std::vector<MergedSequence>> MergeRecords(const Geometry& geometry, const MicroBatchLayout& layout,
                                                         absl::Span<const RankRecord> records,
                                                         absl::Span<const std::string> samples = {});

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_MERGE_RECORDS_H_
