// Realign: staged cuts of many sequences → the index buffer of one rank, and the state of each local row.
//
// Two steps. A plan checks everything on the host: that each staged byte is where it should be, and that every route
// that the row map wants was delivered for every local layer. Carrying it out only moves ids and cannot fail.
#ifndef ROUTING_REPLAY_TRAINER_REALIGN_H_
#define ROUTING_REPLAY_TRAINER_REALIGN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/buffer_layout.h"
#include "routing_replay/trainer/row_map.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"

namespace routing_replay::trainer {

// One piece of a read in the staging buffer: for each of `layer_count` local layers one cut of `rows`, one after the
// other, as read.proto's Piece.
struct StagedPiece {
  int32_t sequence = 0;     // As in the row map.
  int32_t layer_begin = 0;  // Slot of the layout.
  int32_t layer_count = 0;
  RowRange rows;  // Absolute rows of the sequence.
  Codec codec = Codec::kRaw;
  int32_t bit_offset = 0;  // Of the first id in each cut's first byte; 0 for RAW.
  int64_t offset = 0;      // Of the first cut in the staging buffer.
};

struct RealignInput {
  int64_t staging_bytes = 0;
  absl::Span<const StagedPiece> pieces;  // Any order; no (sequence, layer, row) twice.
  absl::Span<const LocalRow> row_map;    // ExpandRowMap, layout.rows() entries; a row may be shown more than once.
  // Per sequence the rows declared to have no route (a normal list): those become kUnrecorded, staged or not. A
  // sequence that falls back to live routing declares all its rows.
  absl::Span<const std::vector<RowRange>> unrecorded;
  // Per sequence the row of its last token, which takes filler, as a kPad, if it is kUnrecorded in the row map and not
  // declared to be (a sequence that falls back declares all rows); -1, or nothing at all: it stays kUnrecorded. Nothing
  // that a loss over next tokens reads depends on it.
  absl::Span<const int64_t> last_rows = {};
};

// Rows [first_row, first_row + rows) of a piece go to local rows from local_row on, for all the piece's layers.
struct RealignCopy {
  int32_t piece = 0;
  int64_t first_row = 0;  // Within the piece.
  int64_t rows = 0;
  int64_t local_row = 0;
};

// Filler ids with ordinal `ordinal` go to this local row, for all layers.
struct RealignFill {
  int64_t local_row = 0;
  int64_t ordinal = 0;
};

struct RealignPlan {
  int64_t staging_bytes = 0;
  std::vector<StagedPiece> pieces;
  std::vector<RealignCopy> copies;
  // Pads in local order with ordinals 0, 1, …, then unrecorded rows and then live ones with the ordinals after them:
  // filler is balanced over the pads alone and over all together.
  std::vector<RealignFill> fills;
  std::vector<RowState> states;  // Per local row.
  int64_t replayed_rows = 0;
  int64_t unrecorded_rows = 0;
  int64_t pad_rows = 0;
};

// INVALID_ARGUMENT (kField, kLength) for pieces that do not fit the layout, the staging buffer or each other, and for a
// row map of another size. FAILED_PRECONDITION (kNotCommitted, with layer and missing_rows of the first sequence and
// layer concerned) if a row that the map replays is neither staged in every local layer nor declared unrecorded: a row
// is never replayed in part of the layers.
absl::StatusOr<RealignPlan> PlanRealign(const BufferLayout& layout, const RealignInput& input);

// Carries the plan out on the CPU. `staging` is what input.staging_bytes stood for; `indices` has layout.bytes() bytes
// and `states` layout.rows() entries, both fully overwritten. `plan` must come from PlanRealign with this layout.
// INVALID_ARGUMENT (kLength) for other sizes, nothing written. Ids are not checked.
absl::Status Realign(const BufferLayout& layout, const RealignPlan& plan, absl::Span<const uint8_t> staging,
                     absl::Span<uint8_t> indices, absl::Span<RowState> states);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_REALIGN_H_
