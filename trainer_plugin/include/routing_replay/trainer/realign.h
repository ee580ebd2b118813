#ifndef ROUTING_REPLAY_TRAINER_REALIGN_H_
#define ROUTING_REPLAY_TRAINER_REALIGN_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/row_map.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"

namespace routing_replay::trainer {

// Where the ids of each (local MoE layer, local row) lie in a rank's index buffer.
//
//   buffer = slabs of all local layers, one after the other                  slab = [rows][K] ids, compact width
//
// There is no padding, neither between slabs nor inside: rows follow each other, whatever E and K the neighbouring
// layers have. Only the base of a buffer is aligned. Slabs of two-byte ids come first, so that every id is at a
// multiple of its width; slabs of one width are in slot order. Addresses depend on the layout alone, so they may be
// captured in a CUDA graph.

// Recommended alignment of a buffer, or of a pool of buffers.
inline constexpr int64_t kBufferAlignment = 256;
inline constexpr int64_t kMaxLocalRows = int64_t{1} << 24;

// Immutable, thread-safe.
class BufferLayout {
 public:
  struct Options {
    std::vector<int32_t> ordinals;  // MoE ordinals of the local layers in slot order, each at most once. May be empty.
    int64_t rows = 0;               // Local rows, pads included.
    int32_t ep_size = 1;            // Size of the expert-parallel group; used to spread filler.
  };
  // INVALID_ARGUMENT (kField) for an ordinal that the geometry lacks or that occurs twice, rows outside [0,
  // kMaxLocalRows], and an E that ep_size does not divide (then filler cannot be balanced, and Megatron rejects it).
  static absl::StatusOr<BufferLayout> Create(const Geometry& geometry, const Options& options);

  const Geometry& geometry() const { return geometry_; }
  int32_t num_layers() const { return static_cast<int32_t>(ordinals_.size()); }
  int64_t rows() const { return rows_; }
  int32_t ep_size() const { return ep_size_; }
  int32_t ordinal(int32_t slot) const { return ordinals_[slot]; }
  const LayerRouting& layer(int32_t slot) const { return geometry_.layer(ordinals_[slot]); }

  // Bytes of one row of a layer, of its slab, and of the whole buffer, which is the sum of its slabs.
  int64_t row_bytes(int32_t slot) const { return row_bytes_[slot]; }
  int64_t slab_bytes(int32_t slot) const { return rows_ * row_bytes(slot); }
  int64_t bytes() const { return bytes_; }
  int64_t slab_offset(int32_t slot) const { return offsets_[slot]; }

  // The slab of a layer inside a buffer of bytes() bytes.
  absl::Span<const uint8_t> slab(absl::Span<const uint8_t> buffer, int32_t slot) const;
  absl::Span<uint8_t> slab(absl::Span<uint8_t> buffer, int32_t slot) const;

 private:
  explicit BufferLayout(const Geometry& geometry) : geometry_(geometry) {}

  Geometry geometry_;
  std::vector<int32_t> ordinals_;
  std::vector<int64_t> row_bytes_, offsets_;
  int64_t rows_ = 0;
  int64_t bytes_ = 0;
  int32_t ep_size_ = 1;
};

// Realign: staged cuts of many sequences → the index buffer of one rank, and the state of each local row.
//
// Two steps. A plan checks everything on the host: that each staged byte is in its place, and that every route that the
// row map needs was delivered for every local layer. Executing the plan only moves ids and cannot fail.

// One piece of a read in the staging buffer: one cut of `rows` for each of `layer_count` local layers, one after the
// other, as read.proto's Piece.
struct StagedPiece {
  int32_t sequence = 0;     // As in the row map.
  int32_t layer_begin = 0;  // Slot of the layout.
  int32_t layer_count = 0;
  RowRange rows;  // Absolute rows of the sequence.
  Codec codec = Codec::kRaw;
  int32_t bit_offset = 0;  // Bit of the first id in each cut's first byte; 0 for RAW.
  int64_t offset = 0;      // Offset of the first cut in the staging buffer.
};

// What the local rows show, in the form in which realigning needs it: made once per plan. Immutable.
class ShownRows {
 public:
  // Rows `rows` of a sequence at consecutive local rows.
  struct Run {
    RowRange rows;
    int64_t local_row = 0;
  };
  struct Sequence {
    std::vector<Run> runs;  // Of its replayed rows, by their first row. They overlap where a row is shown twice.
    int64_t longest_run = 0;
  };
  // `row_map`: of ExpandRowMap. A row may be shown more than once. INVALID_ARGUMENT (kField) naming a local row that
  // shows what cannot be.
  static absl::StatusOr<ShownRows> Create(absl::Span<const LocalRow> row_map);

  int64_t size() const { return static_cast<int64_t>(states_.size()); }
  const std::vector<RowState>& states() const { return states_; }
  // Those that are not replayed, ascending.
  const std::vector<std::pair<int64_t, LocalRow>>& others() const { return others_; }
  // Up to the last one that a replayed row is of.
  const std::vector<Sequence>& sequences() const { return sequences_; }
  // Calls `body(part, local_row)` for the parts of `rows` that local rows show, each run by itself.
  template <typename Body>
  void ForEachPart(int32_t sequence, RowRange rows, Body&& body) const;

 private:
  std::vector<RowState> states_;
  std::vector<std::pair<int64_t, LocalRow>> others_;
  std::vector<Sequence> sequences_;
};

struct RealignInput {
  int64_t staging_bytes = 0;
  absl::Span<const StagedPiece> pieces;  // Any order; no (sequence, layer, row) twice.
  const ShownRows& rows;                 // layout.rows() of them.
  // Per sequence the rows without a route (a normal list): they become kUnrecorded, staged or not. A sequence that
  // falls back to live routing lists all its rows.
  absl::Span<const std::vector<RowRange>> unrecorded;
  // Per sequence the row of its last token: if it is kUnrecorded in the row map and not listed above (a sequence that
  // falls back lists all rows), it takes filler, as a kPad. -1, or an empty span: it stays kUnrecorded. No loss over
  // next tokens depends on this row.
  absl::Span<const int64_t> last_rows = {};
};

// Rows [first_row, first_row + rows) of a piece go to local rows from local_row on, for all the piece's layers.
struct RealignCopy {
  int32_t piece = 0;
  int64_t first_row = 0;  // Within the piece.
  int64_t rows = 0;
  int64_t local_row = 0;
};

// The filler ids number `ordinal` go to this local row, for all layers.
struct RealignFill {
  int64_t local_row = 0;
  int64_t ordinal = 0;
};

// Local rows by state.
struct RowCounts {
  int64_t replayed_rows = 0;
  int64_t unrecorded_rows = 0;
  int64_t pad_rows = 0;
};

// What is written beside the ids that pieces bring.
struct RowPlan : RowCounts {
  // Pads in local order with ordinals 0, 1, …, then unrecorded rows and then live ones with the following ordinals:
  // filler is balanced over the pads alone and over all together.
  std::vector<RealignFill> fills;
  std::vector<RowState> states;  // Per local row.
};

struct RealignPlan : RowPlan {
  int64_t staging_bytes = 0;
  std::vector<StagedPiece> pieces;
  std::vector<RealignCopy> copies;
};

// INVALID_ARGUMENT (kField, kLength) for pieces that contradict the layout, the staging buffer or each other, and for a
// rows of another number or sequence. FAILED_PRECONDITION (kNotCommitted, with layer and missing_rows of the first
// sequence and layer concerned) if a row that the map replays is neither staged in every local layer nor listed as
// unrecorded: a row is never replayed in only some of the layers.
absl::StatusOr<RealignPlan> PlanRealign(const BufferLayout& layout, const RealignInput& input);

// Executes the plan on the CPU. `staging` has the input.staging_bytes bytes that were planned; `indices` has
// layout.bytes() bytes and `states` layout.rows() entries, both fully overwritten. `plan` must come from PlanRealign
// with this layout. INVALID_ARGUMENT (kLength) for other sizes, nothing written. Ids are not checked.
absl::Status Realign(const BufferLayout& layout, const RealignPlan& plan, absl::Span<const uint8_t> staging,
                     absl::Span<uint8_t> indices, absl::Span<RowState> states);

// Without staging: each piece is moved when it arrives, while its bytes are in the cache. At the end PlanRows checks
// all of them, as PlanRealign would if they were staged one after the other, and FinishRealign writes what no piece
// brings.

// Moves the ids of a piece of a checked read to the local rows that show them. `bytes`: its cuts. Requires
// CheckTargets.
void MovePiece(const BufferLayout& layout, const ShownRows& rows, const StagedPiece& piece,
               absl::Span<const uint8_t> bytes, absl::Span<uint8_t> indices);
absl::StatusOr<RowPlan> PlanRows(const BufferLayout& layout, const RealignInput& input);
// Writes filler and states. Requires CheckTargets.
void FinishRealign(const BufferLayout& layout, const RowPlan& plan, absl::Span<uint8_t> indices,
                   absl::Span<RowState> states);
// INVALID_ARGUMENT (kLength) unless these are an index buffer and row states of the layout.
absl::Status CheckTargets(const BufferLayout& layout, absl::Span<uint8_t> indices, absl::Span<RowState> states);

template <typename Body>
void ShownRows::ForEachPart(int32_t sequence, RowRange rows, Body&& body) const {
  if (static_cast<size_t>(sequence) >= sequences_.size()) return;
  const auto& [runs, longest_run] = sequences_[sequence];
  // A run that begins earlier than `rows` by more than the longest run's length cannot reach them.
  auto run = std::lower_bound(runs.begin(), runs.end(), rows.begin - longest_run,
                              [](const Run& r, int64_t begin) { return r.rows.begin < begin; });
  for (; run != runs.end() && run->rows.begin < rows.end; ++run) {
    const RowRange part = Intersect(run->rows, rows);
    if (!part.empty()) body(part, run->local_row + part.begin - run->rows.begin);
  }
}

// A realign plan in one block of bytes without pointers, to be copied to a device next to the staged bytes.
//
//   plan ─PackPlan─▶ bytes ─copy─▶ device ─LaunchRealign (replay_cuda.h)─▶ index buffers of all local layers, row
//   states
//
// The work is divided into units, each for one warp: up to 1024 ids of one layer that are contiguous in both buffers,
// up to 32 rows of filler of one layer, or up to 1024 row states. The plan has 24 bytes per 1024 ids if rows follow one
// another in runs.

// Required alignment of a packed plan.
inline constexpr int64_t kPackedPlanAlignment = 16;

struct PackedPlanSize {
  int64_t bytes = 0;
  int64_t units = 0;
};

// `plan` must come from PlanRealign with this layout.
PackedPlanSize SizeOfPackedPlan(const BufferLayout& layout, const RealignPlan& plan);

// Writes the packed plan to the first bytes of `out` (on a multiple of kPackedPlanAlignment), which may be longer: a
// buffer at a fixed address, for a captured graph, has room for the largest plan. INVALID_ARGUMENT (kLength) if it is
// too short or not aligned, nothing written.
absl::Status PackPlan(const BufferLayout& layout, const RealignPlan& plan, absl::Span<uint8_t> out);

// Executes a packed plan on the CPU, as a device does. Buffers as for Realign.
void RealignPacked(const uint8_t* packed, const uint8_t* staging, uint8_t* indices, RowState* states);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_REALIGN_H_
