// Computes which rows the router of one rank sees, for example under a zigzag partition: see Partition and BuildRowMap.
//
// Nothing is guessed: the caller states the format, padded boundaries, partition, sizes and flags that the trainer
// really used. rows.cc follows the steps of a Megatron forward pass one by one: padded sequences → context-parallel
// (CP) slice → router's row order → sequence-parallel (SP) slice → samples un-flattened → padding to target_rows.
#ifndef ROUTING_REPLAY_TRAINER_ROWS_H_
#define ROUTING_REPLAY_TRAINER_ROWS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "routing_replay/trainer/row_map.h"
#include "routing_replay/wire/row_range.h"

namespace routing_replay::trainer {

// Limit for the rows of one micro-batch over all ranks.
inline constexpr int64_t kMaxStreamRows = int64_t{1} << 26;

enum class TokenFormat : uint8_t {
  kThd = 0,   // Packed: all sequences in one stream of documents.
  kBshd = 1,  // A rectangle [batch_size][padded_length].
};

// Which rows CP rank r of C keeps. Zigzag over a span of S rows (S a multiple of 2C): with h = S / 2C, first rows [r·h,
// (r+1)·h), then rows [S - (r+1)·h, S - r·h). Contiguous over S rows (S a multiple of C): rows [r·S/C, (r+1)·S/C).
// Sources of zigzag: Megatron-Core get_batch_on_this_cp_rank (per sequence), Transformer Engine
// thd_get_partitioned_indices (per document). Of contiguous: verl's cp_layout, slime's and miles's allgather CP,
// prime-rl. The communication method of attention (p2p, all_gather, a2a, hierarchical groups) does not change which
// rows a rank keeps; dynamic and hybrid CP only choose C and r per micro-batch.
enum class Partition : uint8_t {
  kZigzagPerDocument = 0,      // THD: zigzag over each document.
  kZigzagPerSequence = 1,      // Zigzag. BSHD: over each sequence of the batch. THD: over the whole stream.
  kContiguous = 2,             // THD: contiguous over the whole stream.
  kContiguousPerSequence = 3,  // BSHD: over each sequence of the batch.
};

// BSHD only: which position at the router the local row s of sequence b has. (Megatron's TopKRouter.routing does
// logits.view(-1, E) on [s, b, E].)
enum class RowOrder : uint8_t {
  kSequenceMajor = 0,  // s·B + b: hidden states are [s, b, h], as in Megatron.
  kBatchMajor = 1,     // b·S + s
};

// BSHD in batch-major order only: what the sequence-parallel (SP) slice divides into tp_size equal pieces (Megatron's
// scatter_to_sequence_parallel_region divides dimension 0). In sequence-major order both give the same rows.
enum class SpSlice : uint8_t {
  kAfterFlatten = 0,   // All local rows of the micro-batch, as one list.
  kBeforeFlatten = 1,  // The local rows of each sequence.
};

struct SequenceShape {
  int64_t tokens = 0;  // T, without padding, with expanded media tokens. 0: the document is all padding.
  // Rows 0 … recorded_rows - 1 should have a route: usually T - 1 rows; T or fewer are allowed.
  int64_t recorded_rows = 0;
  // Position of the first token in its document or padded sequence; above 0 with left padding.
  int64_t first_row = 0;
  bool live = false;  // The sequence belongs to no sample: its rows without a route are kLive.
  friend bool operator==(const SequenceShape&, const SequenceShape&) = default;
};

// Describes the micro-batch; the same on every rank.
struct MicroBatchLayout {
  TokenFormat format = TokenFormat::kThd;
  std::vector<SequenceShape> sequences;
  // THD: boundaries of the padded documents before CP. Document i holds sequence i, starting at its first_row;
  // documents after the last sequence are padding.
  std::vector<int64_t> cu_seqlens_padded;
  // THD: number of rows of the padded stream (the token tensor) before CP.
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
  // THD: Megatron's PackedSeqParams.tokens_per_sample, here S. If a rank has n·S rows of the stream after CP and SP,
  // with n > 1, its MoE layers un-flatten them to [S][n] (TransformerLayer._maybe_unflatten_for_moe): row b·S + s of
  // these becomes local row s·n + b of the router.
  std::optional<int64_t> tokens_per_sample;
  // Number of rows at the router of every rank, if the trainer pads them further after SP. Pads are added at the end.
  std::optional<int64_t> target_rows;
  friend bool operator==(const MicroBatchLayout&, const MicroBatchLayout&) = default;
};

// The rank whose rows are computed.
struct RowRank {
  int32_t cp_rank = 0;
  int32_t tp_rank = 0;
};

// Says that rows row, …, row + count - 1 of a sequence are at local rows local_row, local_row + stride, ….
struct RowRun {
  int64_t local_row = 0;
  int64_t stride = 1;
  int64_t count = 0;
  int32_t sequence = 0;
  int64_t row = 0;
  RowState state = RowState::kReplayed;  // Never kPad.

  // The part of this run with the entries [begin, end). Requires 0 <= begin <= end <= count.
  constexpr RowRun Part(int64_t begin, int64_t end) const {
    return {local_row + begin * stride, stride, end - begin, sequence, row + begin, state};
  }
  friend bool operator==(const RowRun&, const RowRun&) = default;
};

// A compact row map: which token each local row shows. Local rows that are in no run are pads. A row that is to be
// replayed may still turn out to be unrecorded when its sample is read.
struct RowMap {
  int64_t rows = 0;          // Local rows at the router, pads included.
  std::vector<RowRun> runs;  // Each local row is in at most one run.
  int64_t replayed_rows = 0;
  int64_t unrecorded_rows = 0;
  int64_t live_rows = 0;

  int64_t pad_rows() const { return rows - replayed_rows - unrecorded_rows - live_rows; }
};

// Checks the size of a parallel group: INVALID_ARGUMENT (kField) unless it is 1 … 2^20.
absl::Status CheckSize(absl::string_view field, int32_t size);

// Computes the local rows of one rank. The steps are those of a Megatron forward pass (get_batch_on_this_cp_rank, the
// embedding's scatter to the sequence-parallel region, TransformerLayer._maybe_unflatten_for_moe): pad, slice over CP,
// put in the router's order, slice over SP, un-flatten, pad to target_rows.
//
// Fails with INVALID_ARGUMENT; the message states the numbers and the broken rule. The reason is kField for impossible
// sizes, ranks and combinations (among them more than kMaxRows recorded rows), and kShape for lengths that are not
// divisible or do not add up:
//   more recorded rows than tokens, or more tokens than their document or padded_length;
//   cu_seqlens_padded that does not start at 0, descends, or does not end at total_rows (rows outside of all
//     documents would silently repeat other rows);
//   a length of a document with tokens, a sequence or a stream that is not a multiple of C (zigzag, C > 1: of 2C); a
//     document of padding alone need only be a multiple of C;
//   local rows that are not a multiple of tp_size under SP, or, from 2 · tokens_per_sample on, not of
//   tokens_per_sample; target_rows below the number of local rows.
absl::StatusOr<RowMap> BuildRowMap(const MicroBatchLayout& layout, const RowRank& rank);

// Returns one entry per local row.
std::vector<LocalRow> ExpandRowMap(const RowMap& map);

// For each of `sequences` sequences, the rows that the map replays, as a normal list.
std::vector<std::vector<RowRange>> ReplayedRows(const RowMap& map, int32_t sequences);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_ROWS_H_
