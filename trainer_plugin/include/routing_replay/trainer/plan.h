// The replay plan: everything that one rank needs to replay one micro-batch. Layers are those of layers.h (Megatron
// get_num_layers_to_build, get_transformer_layer_offset), rows those of rows.h (get_batch_on_this_cp_rank,
// thd_get_partitioned_indices, the sequence-parallel scatter).
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

// Sequences that consist of parts of samples: truncated ones, continued ones, several samples in a row.

// Tokens [offset, offset + tokens) of a sequence are tokens start, start + 1, … of a sample.
struct SequencePiece {
  std::string sample;
  int32_t sequence = 0;  // Index in the layout.
  int64_t offset = 0;
  int64_t tokens = 0;
  int64_t start = 0;
  // The first `rows` tokens have a route to replay: row `start` and on. One fewer than the tokens if the piece ends
  // with its sample, because the last token was never fed to the model.
  int64_t rows = 0;
  bool live = false;  // Belongs to no sample: tokens without a route are kLive.
};

// The map in terms of pieces: `sequence` is an index in `pieces`, `row` is that of the sample, and tokens behind the
// rows of their piece are unrecorded (kLive in a live piece), whatever the layout says. INVALID_ARGUMENT (kField)
// unless the pieces of each sequence of `layout` follow each other, ascending by sequence, and cover its tokens.
absl::StatusOr<RowMap> ShowPieces(const RowMap& map, const MicroBatchLayout& layout,
                                  absl::Span<const SequencePiece> pieces);

// What to read of one sequence, for all layers of the plan.
struct PlanSlice {
  int32_t sequence = 0;        // Index in MicroBatchLayout::sequences, or in the pieces if there are any.
  std::vector<RowRange> rows;  // Normal list, not empty.
  friend bool operator==(const PlanSlice&, const PlanSlice&) = default;
};

struct ReplayPlan {
  std::vector<OwnedLayer> layers;  // Ascending ids: the layer list of a read, and the slots of the index buffer.
  // E and K of each layer in the geometry of the plan: rows of another geometry cannot be staged.
  std::vector<LayerRouting> routing;
  RowMap row_map;
  // Ascending by sequence. Exactly the rows that the map replays; empty if the rank owns no MoE layer.
  std::vector<PlanSlice> slices;
  int64_t rows_to_read = 0;   // Sum over slices, for one layer.
  int64_t bytes_to_read = 0;  // Bytes of decoded ids, over all layers.
  // Bytes of the index buffers of all layers, [local rows][K] compact ids each, and of the pads among them.
  int64_t index_bytes = 0;
  int64_t padded_bytes = 0;
};

struct PlanRank {
  int32_t pp_rank = 0;
  std::optional<int32_t> chunk;        // One virtual stage; not set: all chunks of the rank.
  std::vector<int32_t> native_layers;  // MoE layers that the trainer routes live: see WithoutNativeLayers.
  RowRank rows;
};

// The plan for these layers of the rank, whose ids must ascend. With pieces, row map and slices are in terms of them.
// INVALID_ARGUMENT as BuildRowMap and ShowPieces.
absl::StatusOr<ReplayPlan> MakeReplayPlan(const Geometry& geometry, std::vector<OwnedLayer> layers,
                                          const MicroBatchLayout& layout, const RowRank& rank,
                                          absl::Span<const SequencePiece> pieces = {});

// The plan for the rank's layers in the table. INVALID_ARGUMENT as OwnedMoeLayers, WithoutNativeLayers and BuildRowMap.
absl::StatusOr<ReplayPlan> MakeReplayPlan(const Geometry& geometry, const LayerTable& table,
                                          const MicroBatchLayout& layout, const PlanRank& rank);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PLAN_H_
