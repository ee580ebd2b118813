// The replay plan: everything that one rank needs to replay one micro-batch. layers.h says which layers the rank owns
// (as Megatron's get_num_layers_to_build and get_transformer_layer_offset do), rows.h which rows (as
// get_batch_on_this_cp_rank, thd_get_partitioned_indices and the sequence-parallel scatter do).
#ifndef ROUTING_REPLAY_TRAINER_PLAN_H_
#define ROUTING_REPLAY_TRAINER_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/layers.h"
#include "routing_replay/trainer/row_map.h"
#include "routing_replay/trainer/rows.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"

namespace routing_replay::trainer {

// Pieces are for sequences that are not one whole sample: for example only its first or last tokens, or two samples.

// A piece says that tokens [offset, offset + tokens) of a sequence are tokens start, start + 1, … of a sample.
struct SequencePiece {
  std::string sample;
  int32_t sequence = 0;  // Index in MicroBatchLayout::sequences.
  int64_t offset = 0;
  int64_t tokens = 0;
  int64_t start = 0;
  // The first `rows` tokens have a route to replay: rows start, start + 1, … of the sample. If the piece ends at the
  // end of its sample, `rows` is tokens - 1, because the last token was never fed to the model.
  int64_t rows = 0;
  bool live = false;  // The piece belongs to no sample: its tokens without a route are kLive.
};

// Converts a row map to one in terms of pieces: `sequence` becomes an index in `pieces` and `row` a row of the sample.
// The tokens of a piece after its first `rows` are unrecorded (kLive in a live piece), whatever the layout says.
// INVALID_ARGUMENT (kField) unless the pieces of each sequence of `layout` follow each other, ascending by sequence,
// and cover its tokens.
absl::StatusOr<RowMap> ShowPieces(const RowMap& map, const MicroBatchLayout& layout,
                                  absl::Span<const SequencePiece> pieces);

// The rows to read of one sequence, for all layers of the plan.
struct PlanSlice {
  int32_t sequence = 0;        // Index in MicroBatchLayout::sequences, or in the pieces if the plan has any.
  std::vector<RowRange> rows;  // Normal list, not empty.
  friend bool operator==(const PlanSlice&, const PlanSlice&) = default;
};

struct ReplayPlan {
  std::vector<OwnedLayer> layers;  // By ascending id. The layers to read, and the slots of the index buffer.
  // E and K of each layer, from the geometry of the plan. Rows of another geometry cannot be staged.
  std::vector<LayerRouting> routing;
  RowMap row_map;
  // Exactly the rows that row_map replays, ascending by sequence. Empty if the rank owns no MoE layer.
  std::vector<PlanSlice> slices;
  int64_t rows_to_read = 0;   // Rows in all slices together, for one layer.
  int64_t bytes_to_read = 0;  // Size of the decoded ids of these rows, over all layers.
};

struct PlanRank {
  int32_t pp_rank = 0;
  std::optional<int32_t> chunk;        // The virtual stage; not set: all chunks of the rank.
  std::vector<int32_t> native_layers;  // MoE layers that the trainer routes live: see WithoutNativeLayers.
  RowRank rows;
};

// Makes the plan for these layers of the rank, whose ids must ascend. If there are pieces, the row map and the slices
// are in terms of pieces. Fails with the INVALID_ARGUMENT errors of BuildRowMap and ShowPieces.
absl::StatusOr<ReplayPlan> MakeReplayPlan(const Geometry& geometry, std::vector<OwnedLayer> layers,
                                          const MicroBatchLayout& layout, const RowRank& rank,
                                          absl::Span<const SequencePiece> pieces = {});

// Makes the plan for the layers that the rank has in the table. Fails with the INVALID_ARGUMENT errors of
// OwnedMoeLayers, WithoutNativeLayers and BuildRowMap.
absl::StatusOr<ReplayPlan> MakeReplayPlan(const Geometry& geometry, const LayerTable& table,
                                          const MicroBatchLayout& layout, const PlanRank& rank);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PLAN_H_
