#include "tests/reference/token_layout_reference.h"

namespace routing_replay::reference {
namespace {

using trainer::LocalRow;
using trainer::MicroBatchLayout;
using trainer::Partition;
using trainer::RowState;
using Rows = std::vector<LocalRow>;

// All rows of document or batch entry `index`, padding included.
Rows PaddedSequence(const MicroBatchLayout& layout, size_t index, int64_t padded_length) {
  Rows rows;
  for (int64_t t = 0; t < padded_length; ++t) {
    LocalRow row;  // A pad.
    const int64_t token = index < layout.sequences.size() ? t - layout.sequences[index].first_row : -1;
    if (token >= 0 && token < layout.sequences[index].tokens) {
      row = {.sequence = static_cast<int32_t>(index), .row = static_cast<int32_t>(token), .state = RowState::kReplayed};
      if (token >= layout.sequences[index].recorded_rows) row.state = RowState::kUnrecorded;
    }
    rows.push_back(row);
  }
  return rows;
}

// Returns which row of a span of S rows is shown by local row i of CP rank r of C. The span has 2C chunks of equal
// length, and the rank keeps chunk r and then chunk 2C - 1 - r.
int64_t ZigzagSource(int64_t i, int64_t size, int64_t cp_size, int64_t r) {
  if (cp_size == 1) return i;
  const int64_t c = size / (2 * cp_size);
  return i < c ? r * c + i : (2 * cp_size - 1 - r) * c + (i - c);
}

int64_t ContiguousSource(int64_t i, int64_t size, int64_t cp_size, int64_t r) { return r * (size / cp_size) + i; }

Rows CpSlice(const Rows& span, bool zigzag, int64_t cp_size, int64_t r) {
  const int64_t size = static_cast<int64_t>(span.size());
  Rows kept;
  for (int64_t i = 0; i < size / cp_size; ++i) {
    kept.push_back(span[zigzag ? ZigzagSource(i, size, cp_size, r) : ContiguousSource(i, size, cp_size, r)]);
  }
  return kept;
}

Rows SpSlice(const Rows& rows, const MicroBatchLayout& layout, int64_t q) {
  if (!layout.sequence_parallel) return rows;
  const int64_t n = static_cast<int64_t>(rows.size()) / layout.tp_size;
  return Rows(rows.begin() + q * n, rows.begin() + (q + 1) * n);
}

// Takes the rows as [samples][S], where S is tokens_per_sample, and transposes them to [S][samples].
Rows Unflattened(const Rows& rows, const MicroBatchLayout& layout) {
  const int64_t size = layout.tokens_per_sample.value_or(static_cast<int64_t>(rows.size()) + 1);
  const int64_t samples = static_cast<int64_t>(rows.size()) / size;
  if (samples <= 1) return rows;
  Rows transposed;
  for (int64_t s = 0; s < size; ++s) {
    for (int64_t b = 0; b < samples; ++b) transposed.push_back(rows[b * size + s]);
  }
  return transposed;
}

Rows PackedRows(const MicroBatchLayout& layout, int64_t r, int64_t q) {
  const bool zigzag = layout.partition != Partition::kContiguous;
  Rows stream, local;
  for (size_t d = 0; d + 1 < layout.cu_seqlens_padded.size(); ++d) {
    const int64_t padded_length = layout.cu_seqlens_padded[d + 1] - layout.cu_seqlens_padded[d];
    const Rows document = PaddedSequence(layout, d, padded_length);
    stream.insert(stream.end(), document.begin(), document.end());
    const Rows slice = CpSlice(document, true, layout.cp_size, r);
    local.insert(local.end(), slice.begin(), slice.end());
  }
  if (layout.partition != Partition::kZigzagPerDocument) local = CpSlice(stream, zigzag, layout.cp_size, r);
  return Unflattened(SpSlice(local, layout, q), layout);
}

Rows RectangleRows(const MicroBatchLayout& layout, int64_t r, int64_t q) {
  const bool sequence_major = layout.row_order == trainer::RowOrder::kSequenceMajor;
  const bool before_flatten = layout.sp_slice == trainer::SpSlice::kBeforeFlatten;
  std::vector<Rows> batch;
  for (int64_t b = 0; b < layout.batch_size; ++b) {
    const Rows sequence = PaddedSequence(layout, b, layout.padded_length);
    batch.push_back(CpSlice(sequence, layout.partition == Partition::kZigzagPerSequence, layout.cp_size, r));
    if (before_flatten) batch.back() = SpSlice(batch.back(), layout, q);
  }
  Rows flat;
  const size_t length = batch[0].size();
  for (size_t i = 0; i < length * batch.size(); ++i) {
    flat.push_back(sequence_major ? batch[i % batch.size()][i / batch.size()] : batch[i / length][i % length]);
  }
  return before_flatten ? flat : SpSlice(flat, layout, q);
}

}  // namespace

std::vector<LocalRow> LocalRows(const MicroBatchLayout& layout, int64_t cp_rank, int64_t tp_rank) {
  const bool packed = layout.format == trainer::TokenFormat::kThd;
  Rows rows = packed ? PackedRows(layout, cp_rank, tp_rank) : RectangleRows(layout, cp_rank, tp_rank);
  if (layout.target_rows) rows.resize(*layout.target_rows);
  return rows;
}

}  // namespace routing_replay::reference
