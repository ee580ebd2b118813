#include "trainer_plugin/layout/rows_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"
#include "trainer_plugin/layout/multiple.h"

namespace routing_replay::trainer {
namespace {

constexpr int32_t kMaxRanks = 1 << 20;

absl::Status CheckRank(absl::string_view name, int32_t rank, int32_t size) {
  if (absl::Status status = CheckSize(absl::StrCat(name, "_size"), size); !status.ok()) return status;
  if (rank < 0 || rank >= size) {
    return Invalid(absl::StrCat("rank.", name), absl::StrCat(rank, " is not in [0, ", size, ")"));
  }
  return absl::OkStatus();
}

// Why a sequence cannot be; called for one that cannot.
absl::Status SequenceError(const SequenceShape& sequence, size_t index, int64_t padded_length) {
  const std::string field = absl::StrCat("sequences[", index, "]");
  if (sequence.tokens < 0 || sequence.recorded_rows < 0 || sequence.first_row < 0) {
    return Invalid(field, "a length is negative");
  }
  if (sequence.recorded_rows > kMaxRows) {
    return Invalid(field, absl::StrCat(sequence.recorded_rows, " recorded rows are more than ", kMaxRows));
  }
  if (sequence.recorded_rows > sequence.tokens) {
    return Invalid(Reason::kShape, field,
                   absl::StrCat(sequence.recorded_rows, " recorded rows for ", sequence.tokens, " tokens"));
  }
  const std::string first = sequence.first_row > 0 ? absl::StrCat(" from row ", sequence.first_row, " on") : "";
  return Invalid(Reason::kShape, field,
                 absl::StrCat(sequence.tokens, " tokens", first, " in ", padded_length, " padded rows"));
}

absl::Status CheckSequence(const SequenceShape& sequence, size_t index, int64_t padded_length) {
  const bool can_be = sequence.recorded_rows >= 0 && sequence.recorded_rows <= std::min(sequence.tokens, kMaxRows) &&
                      sequence.first_row >= 0 && sequence.first_row <= padded_length &&
                      sequence.tokens <= padded_length - sequence.first_row;
  return can_be ? absl::OkStatus() : SequenceError(sequence, index, padded_length);
}

// What the rows of a span that is cut over CP ranks must be a multiple of: zigzag keeps two halves per rank, contiguous
// one piece, and padding alone is as good in one piece.
int64_t CpUnit(const MicroBatchLayout& layout, bool padding_alone) {
  const bool zigzag =
      layout.partition == Partition::kZigzagPerDocument || layout.partition == Partition::kZigzagPerSequence;
  return zigzag && !padding_alone ? ZigzagUnit(layout.cp_size) : layout.cp_size;
}

absl::Status DividesError(const MicroBatchLayout& layout, absl::string_view what, int64_t rows, int64_t unit) {
  return Invalid(Reason::kShape, "partition",
                 absl::StrCat(what, " of ", rows, " rows is not a multiple of ", unit > layout.cp_size ? "2 x " : "",
                              "cp_size = ", unit));
}

absl::Status CheckDivides(const MicroBatchLayout& layout, absl::string_view what, int64_t rows) {
  const int64_t unit = CpUnit(layout, false);
  return rows % unit == 0 ? absl::OkStatus() : DividesError(layout, what, rows, unit);
}

absl::Status CheckTokensPerSample(const MicroBatchLayout& layout) {
  if (!layout.tokens_per_sample) return absl::OkStatus();
  if (layout.partition == Partition::kExplicit) {
    return Invalid("tokens_per_sample", "is given, but a list of positions is in the router's order already");
  }
  if (*layout.tokens_per_sample >= 1) return absl::OkStatus();
  return Invalid("tokens_per_sample", absl::StrCat(*layout.tokens_per_sample, " is below 1"));
}

absl::Status CheckStream(const MicroBatchLayout& layout) {
  if (layout.total_rows < 0 || layout.total_rows > kMaxStreamRows) {
    return Invalid("total_rows", absl::StrCat(layout.total_rows, " is not in 0 … ", kMaxStreamRows));
  }
  const std::vector<int64_t>& cu = layout.cu_seqlens_padded;
  if (cu.empty() || cu.front() != 0) return Invalid(Reason::kShape, "cu_seqlens_padded", "does not start at 0");
  for (size_t i = 1; i < cu.size(); ++i) {
    if (cu[i] < cu[i - 1]) {
      return Invalid(Reason::kShape, "cu_seqlens_padded",
                     absl::StrCat("entry ", i, " descends from ", cu[i - 1], " to ", cu[i]));
    }
  }
  if (cu.back() != layout.total_rows) {
    return Invalid(Reason::kShape, "cu_seqlens_padded",
                   absl::StrCat("ends at ", cu.back(), ", the stream has ", layout.total_rows,
                                " rows: each row must be in one document, padding in documents of its own"));
  }
  if (cu.size() - 1 < layout.sequences.size()) {
    return Invalid(Reason::kShape, "cu_seqlens_padded",
                   absl::StrCat("has ", cu.size() - 1, " documents for ", layout.sequences.size(), " sequences"));
  }
  return CheckTokensPerSample(layout);
}

absl::Status CheckThd(const MicroBatchLayout& layout) {
  if (absl::Status status = CheckStream(layout); !status.ok()) return status;
  const std::vector<int64_t>& cu = layout.cu_seqlens_padded;
  for (size_t d = 0; d + 1 < cu.size(); ++d) {
    const int64_t rows = cu[d + 1] - cu[d];
    const bool real = d < layout.sequences.size();
    if (real) {
      if (absl::Status status = CheckSequence(layout.sequences[d], d, rows); !status.ok()) return status;
    }
    if (layout.partition == Partition::kZigzagPerDocument) {
      const int64_t unit = CpUnit(layout, !real || layout.sequences[d].tokens == 0);
      if (rows % unit != 0) return DividesError(layout, absl::StrCat("document ", d), rows, unit);
    }
  }
  switch (layout.partition) {
    case Partition::kZigzagPerDocument:
    case Partition::kExplicit:
      return absl::OkStatus();
    case Partition::kZigzagPerSequence:
    case Partition::kContiguous:
      return CheckDivides(layout, "the stream", layout.total_rows);
    case Partition::kContiguousPerSequence:
      break;
  }
  return Invalid("partition", "contiguous per sequence is a partition of BSHD; a packed stream is cut as a whole");
}

absl::Status CheckBshd(const MicroBatchLayout& layout) {
  if (layout.tokens_per_sample) return Invalid("tokens_per_sample", "is of a packed stream");
  if (layout.batch_size < 1 || layout.batch_size > kMaxStreamRows || layout.padded_length < 0 ||
      layout.padded_length > kMaxStreamRows || layout.batch_size * layout.padded_length > kMaxStreamRows) {
    return Invalid("batch_size", absl::StrCat(layout.batch_size, " x padded_length ", layout.padded_length,
                                              " is not a rectangle of at most ", kMaxStreamRows, " rows"));
  }
  if (layout.sequences.size() > static_cast<size_t>(layout.batch_size)) {
    return Invalid(Reason::kShape, "batch_size",
                   absl::StrCat(layout.batch_size, " for ", layout.sequences.size(), " sequences"));
  }
  for (size_t b = 0; b < layout.sequences.size(); ++b) {
    absl::Status status = CheckSequence(layout.sequences[b], b, layout.padded_length);
    if (!status.ok()) return status;
  }
  switch (layout.partition) {
    case Partition::kExplicit:
      if (layout.sequence_parallel && layout.row_order == RowOrder::kBatchMajor &&
          layout.sp_slice == SpSlice::kBeforeFlatten) {
        return Invalid("sp_slice", "a list of positions is cut as one list: its sequences are not known apart");
      }
      return absl::OkStatus();
    case Partition::kZigzagPerSequence:
    case Partition::kContiguousPerSequence:
      return CheckDivides(layout, "a sequence", layout.padded_length);
    case Partition::kZigzagPerDocument:
    case Partition::kContiguous:
      break;
  }
  return Invalid("partition", "BSHD is cut per sequence: documents and streams are of THD");
}

}  // namespace

absl::Status CheckSize(absl::string_view field, int32_t size) {
  if (size >= 1 && size <= kMaxRanks) return absl::OkStatus();
  return Invalid(field, absl::StrCat(size, " is not in 1 … ", kMaxRanks));
}

absl::Status CheckRows(const MicroBatchLayout& layout, const RowRank& rank) {
  if (absl::Status status = CheckRank("cp", rank.cp_rank, layout.cp_size); !status.ok()) return status;
  if (absl::Status status = CheckRank("tp", rank.tp_rank, layout.tp_size); !status.ok()) return status;
  if (layout.partition != Partition::kExplicit && !rank.positions.empty()) {
    return Invalid("rank.positions", "are given, but the partition is not explicit");
  }
  absl::Status status = layout.format == TokenFormat::kThd ? CheckThd(layout) : CheckBshd(layout);
  if (!status.ok()) return status;
  if (rank.positions.size() > static_cast<size_t>(kMaxStreamRows)) {
    return Invalid("rank.positions", absl::StrCat(rank.positions.size(), " are more than ", kMaxStreamRows));
  }
  const int64_t stream =
      layout.format == TokenFormat::kThd ? layout.total_rows : layout.batch_size * layout.padded_length;
  if (layout.partition == Partition::kExplicit && rank.positions.empty() && stream > 0) {
    return Invalid("rank.positions", absl::StrCat("an explicit partition of ", stream, " rows needs the rank's own"));
  }
  for (size_t i = 0; i < rank.positions.size(); ++i) {
    if (rank.positions[i] < 0 || rank.positions[i] >= stream) {
      return Invalid(Reason::kShape, absl::StrCat("rank.positions[", i, "]"),
                     absl::StrCat(rank.positions[i], " is not in [0, ", stream, ")"));
    }
  }
  return absl::OkStatus();
}

}  // namespace routing_replay::trainer
