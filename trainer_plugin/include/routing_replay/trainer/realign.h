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

// The layout of a rank's index buffer: where the ids of each local MoE layer and local row are.
//
//   buffer = slabs of all local layers, one after the other                  slab = [rows][K] ids, compact width
//
// There is no padding, neither between slabs nor inside them, whatever E and K the layers have. Only the start of the
// buffer is aligned. Slabs with two-byte ids come first, so that every id is at a multiple of its width; slabs with the
// same width are in the order of Options::ordinals. Addresses depend only on the layout, so they may be captured in a
// CUDA graph.

// Recommended alignment of a buffer, or of a pool of buffers.
inline constexpr int64_t kBufferAlignment = 256;
inline constexpr int64_t kMaxLocalRows = int64_t{1} << 24;

// Immutable, thread-safe.
class BufferLayout {
 public:
  struct Options {
    // The local layers by their index among all MoE layers (OwnedLayer::ordinal), each at most once. The layer at
    // position s of this list is in slot s. May be empty.
    std::vector<int32_t> ordinals;
    int64_t rows = 0;     // Local rows, pads included.
    int32_t ep_size = 1;  // Size of the expert-parallel group; filler ids are spread evenly over it.
  };
  // INVALID_ARGUMENT (kField) for rows outside [0, kMaxLocalRows], and if ep_size does not divide E (filler could not
  // be balanced, and Megatron rejects this).
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

// Realign turns staged pieces of many sequences into the index buffer of one rank and the state of each local row.
//
// There are two steps. Making a realign plan checks on the host that every route that the row map needs was delivered
// for every local layer; the read has checked the pieces themselves. Executing the plan only moves ids and cannot fail.

// One piece of a read in the staging buffer (read.proto's Piece): the ids of `rows` in `layer_count` local layers, one
// layer (a cut) after the other.
struct StagedPiece {
  int32_t sequence = 0;     // Index of the sequence, as in the row map.
  int32_t layer_begin = 0;  // First layer, as a slot of the layout.
  int32_t layer_count = 0;
  RowRange rows;  // Row numbers in the sequence.
  Codec codec = Codec::kRaw;
  int32_t bit_offset = 0;  // Where the first id begins in the first byte of each cut; 0 for RAW.
  int64_t offset = 0;      // Byte offset of the first cut in the staging buffer.
};

// The row map in the form that realigning needs, indexed by sequence. Made once per plan. Immutable.
class ShownRows {
 public:
  // Rows of a sequence that are at consecutive local rows.
  struct Run {
    RowRange rows;
    int64_t local_row = 0;
  };
  struct Sequence {
    std::vector<Run> runs;  // The sequence's replayed rows, sorted by first row. Runs overlap if a row is shown twice.
    int64_t longest_run = 0;
  };
  // `row_map` comes from ExpandRowMap. Several local rows may show the same row.
  explicit ShownRows(absl::Span<const LocalRow> row_map);

  int64_t size() const { return static_cast<int64_t>(states_.size()); }
  const std::vector<RowState>& states() const { return states_; }
  // The local rows that are not replayed, ascending.
  const std::vector<std::pair<int64_t, LocalRow>>& others() const { return others_; }
  // Indexed by sequence, up to the last one that has a replayed row.
  const std::vector<Sequence>& sequences() const { return sequences_; }
  // Calls `body(part, local_row)` for each part of `rows` that consecutive local rows show; local_row is the first.
  template <typename Body>
  void ForEachPart(int32_t sequence, RowRange rows, Body&& body) const;

 private:
  std::vector<RowState> states_;
  std::vector<std::pair<int64_t, LocalRow>> others_;
  std::vector<Sequence> sequences_;
};

struct RealignInput {
  absl::Span<const StagedPiece> pieces;  // Those of one fetch, in any order.
  const ShownRows& rows;                 // Must have the layout's rows.
  // For each sequence, its rows without a route (a normal list). They become kUnrecorded even if they are staged. For a
  // sequence that falls back to live routing, list all its rows.
  absl::Span<const std::vector<RowRange>> unrecorded;
  // For each sequence, the row of its last token if this row may become a kPad with filler ids, else -1. An empty span
  // means -1 for all sequences. The row becomes a kPad only if it is kUnrecorded in the row map and not listed in
  // `unrecorded`. No loss depends on its route, because no token is predicted from a sequence's last one.
  absl::Span<const int64_t> last_rows = {};
};

// Copies rows [first_row, first_row + rows) of a piece to the local rows from local_row on, for all layers of the
// piece.
struct RealignCopy {
  int32_t piece = 0;
  int64_t first_row = 0;  // Within the piece.
  int64_t rows = 0;
  int64_t local_row = 0;
};

// Writes the filler ids of filler row number `ordinal` to this local row, for all layers.
struct RealignFill {
  int64_t local_row = 0;
  int64_t ordinal = 0;
};

// Number of local rows in each state.
struct RowCounts {
  int64_t replayed_rows = 0;
  int64_t unrecorded_rows = 0;
  int64_t pad_rows = 0;
};

// What realigning writes in addition to the ids of the pieces.
struct RowPlan : RowCounts {
  // First pads in local order, with ordinals 0, 1, …; then unrecorded rows, then live ones, with the following
  // ordinals. So the experts of filler are balanced over the pads alone, and also over all of these rows together.
  std::vector<RealignFill> fills;
  std::vector<RowState> states;  // Per local row.
};

struct RealignPlan : RowPlan {
  std::vector<StagedPiece> pieces;
  std::vector<RealignCopy> copies;
};

// INVALID_ARGUMENT (kField, kLength) if input.rows does not match the layout or the sequences. FAILED_PRECONDITION
// (kNotCommitted, with the first row and layer concerned) if a row that the map replays is neither staged in every
// local layer nor listed as unrecorded, because a row must never be replayed in only some of the layers.
absl::StatusOr<RealignPlan> PlanRealign(const BufferLayout& layout, const RealignInput& input);

// Executes the plan on the CPU. `plan` must come from PlanRealign with this layout, and its pieces must be staged in
// `staging`. `indices` must have layout.bytes() bytes and `states` layout.rows() entries; both are fully overwritten.
// INVALID_ARGUMENT (kLength) for other sizes; nothing is written then. Ids are not checked.
absl::Status Realign(const BufferLayout& layout, const RealignPlan& plan, absl::Span<const uint8_t> staging,
                     absl::Span<uint8_t> indices, absl::Span<RowState> states);

// Realign without a staging buffer: MovePiece moves each piece when it arrives, while its bytes are in the CPU's cache.
// At the end, PlanRows makes the checks that PlanRealign would make for staged pieces, and FinishRealign writes filler
// and states.

// Copies the ids of each row of a piece to every local row that shows this row. The read must have checked the piece.
// `bytes`: its cuts, one after the other; piece.offset is ignored. Requires that CheckTargets returned OK.
void MovePiece(const BufferLayout& layout, const ShownRows& rows, const StagedPiece& piece,
               absl::Span<const uint8_t> bytes, absl::Span<uint8_t> indices);
absl::StatusOr<RowPlan> PlanRows(const BufferLayout& layout, const RealignInput& input);
// Writes filler and states. Requires that CheckTargets returned OK.
void FinishRealign(const BufferLayout& layout, const RowPlan& plan, absl::Span<uint8_t> indices,
                   absl::Span<RowState> states);
// INVALID_ARGUMENT (kLength) unless both have the size that the layout requires.
absl::Status CheckTargets(const BufferLayout& layout, absl::Span<uint8_t> indices, absl::Span<RowState> states);

template <typename Body>
void ShownRows::ForEachPart(int32_t sequence, RowRange rows, Body&& body) const {
  if (static_cast<size_t>(sequence) >= sequences_.size()) return;
  const auto& [runs, longest_run] = sequences_[sequence];
  // A run that begins before rows.begin by the length of the longest run or more cannot overlap `rows`.
  auto run = std::lower_bound(runs.begin(), runs.end(), rows.begin - longest_run,
                              [](const Run& r, int64_t begin) { return r.rows.begin < begin; });
  for (; run != runs.end() && run->rows.begin < rows.end; ++run) {
    const RowRange part = Intersect(run->rows, rows);
    if (!part.empty()) body(part, run->local_row + part.begin - run->rows.begin);
  }
}

// A packed plan is a realign plan in one block of bytes without pointers, which can be copied to a device together with
// the staged bytes.
//
//   plan ─PackPlan─▶ bytes ─copy─▶ device ─LaunchRealign (replay_cuda.h)─▶ index buffers and row states
//
// The work is divided into units of one warp each. A unit is up to 1024 ids of one layer that are contiguous in the
// staging buffer and in the index buffer, up to 32 filler rows of one layer, or up to 1024 row states. If rows are in
// long runs, the packed plan takes about 24 bytes per 1024 ids.

// Required alignment of a packed plan.
inline constexpr int64_t kPackedPlanAlignment = 16;

struct PackedPlanSize {
  int64_t bytes = 0;
  int64_t units = 0;
};

// `plan` must come from PlanRealign with this layout.
PackedPlanSize SizeOfPackedPlan(const BufferLayout& layout, const RealignPlan& plan);

// Writes the packed plan to the beginning of `out`, whose address must be a multiple of kPackedPlanAlignment. `out` may
// be longer than the plan: for a captured graph, use one buffer at a fixed address with room for the largest plan.
// INVALID_ARGUMENT (kLength) if `out` is too short or not aligned; nothing is written then.
absl::Status PackPlan(const BufferLayout& layout, const RealignPlan& plan, absl::Span<uint8_t> out);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_REALIGN_H_
