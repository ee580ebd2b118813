// Computes the rows that the router of one rank sees. A zigzag row is computed here: see Partition and BuildRowMap.
//
// Nothing is inferred: format, padded boundaries, partition, sizes and flags are what the trainer really used. The
// steps are those of a Megatron forward pass, which rows.cc takes one by one: padded sequences → context-parallel (CP)
// slice → router's row order → sequence-parallel (SP) slice → samples un-flattened → padding to a target row count.
#ifndef ROUTING_REPLAY_TRAINER_ROWS_H_
#define ROUTING_REPLAY_TRAINER_ROWS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/row_map.h"
#include "routing_replay/wire/row_range.h"

namespace routing_replay::trainer {

// Rows of one micro-batch over all ranks.
inline constexpr int64_t kMaxStreamRows = int64_t{1} << 26;

enum class TokenFormat : uint8_t {
  kThd = 0,   // Packed: one stream of documents.
  kBshd = 1,  // A rectangle [batch_size][padded_length].
};

// Which rows a CP rank r of C keeps. Zigzag over a span of S rows, a multiple of 2C: with h = S / 2C first [r·h,
// (r+1)·h), then [S - (r+1)·h, S - r·h). Contiguous over S, a multiple of C: [r·S/C, (r+1)·S/C). Sources: Megatron-Core
// get_batch_on_this_cp_rank (zigzag per sequence) and Transformer Engine thd_get_partitioned_indices (per document);
// contiguous: verl's cp_layout, slime's and miles's allgather CP, prime-rl. The communication of attention (p2p,
// all_gather, a2a, hierarchical groups) changes none of this, and dynamic and hybrid CP only choose C and r per
// micro-batch.
enum class Partition : uint8_t {
  kZigzagPerDocument = 0,      // THD: zigzag over each document.
  kZigzagPerSequence = 1,      // BSHD: over each sequence of the batch. THD: over the stream as a whole.
  kContiguous = 2,             // THD: over the stream as a whole.
  kContiguousPerSequence = 3,  // BSHD: over each sequence of the batch.
  kExplicit = 4,               // As RowRank::positions says.
};

// BSHD only (Megatron TopKRouter.routing: logits.view(-1, E) of [s, b, E]): the position of row (s, b) of the rectangle
// at the router, for local rows s and sequences b.
enum class RowOrder : uint8_t {
  kSequenceMajor = 0,  // s·B + b: hidden states are [s, b, h], as in Megatron.
  kBatchMajor = 1,     // b·S + s
};

// BSHD in batch-major order only: what the SP slice (Megatron scatter_to_sequence_parallel_region: dimension 0 in
// tp_size equal pieces) divides. Sequence-major order gives the same rows either way.
enum class SpSlice : uint8_t {
  kAfterFlatten = 0,   // All local rows of the micro-batch, as one list.
  kBeforeFlatten = 1,  // The local rows of each sequence. Not with kExplicit.
};

struct SequenceShape {
  int64_t tokens = 0;         // T, without padding, media expanded. 0: the whole document is padding.
  int64_t recorded_rows = 0;  // Rows 0 … recorded_rows - 1 have a route, judging by lengths: T - 1, T or fewer.
  int64_t first_row = 0;      // Within its document or padded sequence: above 0 if the padding is on the left.
  bool live = false;          // Belongs to no sample: rows without a route are kLive.
  friend bool operator==(const SequenceShape&, const SequenceShape&) = default;
};

// The micro-batch, the same on every rank.
struct MicroBatchLayout {
  TokenFormat format = TokenFormat::kThd;
  std::vector<SequenceShape> sequences;
  // THD: boundaries of the padded documents before CP. Document i holds sequence i from its first row on; documents
  // after the last sequence are padding.
  std::vector<int64_t> cu_seqlens_padded;
  // THD: rows of the padded stream as the token tensor has them, before CP.
  int64_t total_rows = 0;
  // BSHD. Rows of the batch after the last sequence are padding.
  int64_t batch_size = 0;
  int64_t padded_length = 0;

  Partition partition = Partition::kZigzagPerDocument;
  int32_t cp_size = 1;
  int32_t tp_size = 1;
  bool sequence_parallel = false;
  RowOrder row_order = RowOrder::kSequenceMajor;
  SpSlice sp_slice = SpSlice::kAfterFlatten;
  // THD: S of Megatron's PackedSeqParams.tokens_per_sample. A MoE layer that has n·S local rows after CP and SP, n > 1,
  // un-flattens them to [S][n] (TransformerLayer._maybe_unflatten_for_moe): router row s·n + b shows stream row b·S +
  // s.
  std::optional<int64_t> tokens_per_sample;
  // Rows at the router of every rank, if something pads them further after SP: pads are added at the end.
  std::optional<int64_t> target_rows;
  friend bool operator==(const MicroBatchLayout&, const MicroBatchLayout&) = default;
};

// The rank whose rows are computed.
struct RowRank {
  int32_t cp_rank = 0;
  int32_t tp_rank = 0;
  // kExplicit: for each row that this rank holds after CP and before SP, in the router's order, its position in the
  // padded stream (THD) or b·padded_length + s (BSHD).
  std::vector<int64_t> positions;
};

// Rows row, row + 1, …, row + count - 1 of a sequence at local rows local_row, local_row + stride, ….
struct RowRun {
  int64_t local_row = 0;
  int64_t stride = 1;
  int64_t count = 0;
  int32_t sequence = 0;
  int64_t row = 0;
  RowState state = RowState::kReplayed;  // Never kPad.

  // The entries [begin, end). Requires 0 <= begin <= end <= count.
  constexpr RowRun Part(int64_t begin, int64_t end) const {
    return {local_row + begin * stride, stride, end - begin, sequence, row + begin, state};
  }
  friend bool operator==(const RowRun&, const RowRun&) = default;
};

// What every local row shows, in compact form: local rows in no run are pads. A row that is replayed here may still
// turn out to be unrecorded when its sample is read.
struct RowMap {
  int64_t rows = 0;          // Local rows at the router, pads included.
  std::vector<RowRun> runs;  // No local row twice.
  int64_t replayed_rows = 0;
  int64_t unrecorded_rows = 0;
  int64_t live_rows = 0;

  int64_t pad_rows() const { return rows - replayed_rows - unrecorded_rows - live_rows; }
};

// The size of a parallel group: INVALID_ARGUMENT (kField) unless it is in 1 … 2^20.
absl::Status CheckSize(absl::string_view field, int32_t size);

// The rows of one rank, [local rows]: pad, slice over CP, put in the router's order, slice over SP, un-flatten, pad to
// target_rows, in the order of a Megatron forward pass (get_batch_on_this_cp_rank, the embedding's scatter to the
// sequence-parallel region, TransformerLayer._maybe_unflatten_for_moe).
//
// INVALID_ARGUMENT, the message naming numbers and rule; reason kField for sizes, ranks and combinations that cannot
// be (more than kMaxRows recorded rows among them), and kShape for lengths that do not divide or add up:
//   more recorded rows than tokens, or more tokens than their document or padded_length;
//   cu_seqlens_padded that does not start at 0, descends, or does not end at total_rows (the rows outside it would
//     silently repeat others);
//   a document with tokens, a sequence or a stream that its partition does not divide (for zigzag by 2C when C > 1); a
//     document of padding alone need only be a multiple of C;
//   local rows that tp_size does not divide under SP, or that tokens_per_sample does not; target_rows below them;
//   a position outside the stream; an explicit partition without positions (kField).
absl::StatusOr<RowMap> BuildRowMap(const MicroBatchLayout& layout, const RowRank& rank);

// One entry per local row.
std::vector<LocalRow> ExpandRowMap(const RowMap& map);

// Per sequence the rows that some local row replays: normal lists, `sequences` of them.
std::vector<std::vector<RowRange>> ReplayedRows(const RowMap& map, int32_t sequences);

// The inverse of the row map: from what the ranks recorded of a micro-batch to the rows of its sequences.
//
// It is made from the ranks' own row maps, so every layout that can be replayed can also be recorded. What verl does
// for zigzag and contiguous partitions in merge_router_topk_indices (gather over TP, gather over CP, inverse map per
// sample) is one case of it.

// Rows run.row, run.row + 1, … of run.sequence are at local rows run.local_row, run.local_row + run.stride, … of record
// `record`.
struct RecordRun {
  int32_t record = 0;
  RowRun run;
  friend bool operator==(const RecordRun&, const RecordRun&) = default;
};

struct SequenceMerge {
  // Rows 0 … recorded_rows - 1 once each, ascending.
  std::vector<RecordRun> runs;
  // Further copies of these rows: on tensor ranks without sequence parallelism, which all see the whole CP slice, and
  // in explicit lists that repeat rows. Ascending.
  std::vector<RecordRun> copies;
};

// One entry per sequence. `maps` holds the result of BuildRowMap for `layout` on each rank of the model replica that
// shares the layers, in any order; if several show a row, the first one's is in `runs`. recorded_rows of a sequence
// says which rows are merged: T - 1 as the service keeps them, or T. `samples` names the sequences in errors, or is
// empty. FAILED_PRECONDITION (kNotCommitted, with sample, row and missing_rows) if no map shows some of a sequence's
// rows.
absl::StatusOr<std::vector<SequenceMerge>> MergeRows(const MicroBatchLayout& layout, absl::Span<const RowMap> maps,
                                                     absl::Span<const std::string> samples = {});

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_ROWS_H_
