// What the sequences of a micro-batch are: from masks, boundaries and media, and put together from pieces of samples.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/rows.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {
namespace {

SequenceShape WholeSample(int64_t tokens) {
  return {.tokens = tokens, .recorded_rows = std::max<int64_t>(tokens - 1, 0)};
}

absl::Status CheckPiece(size_t index, const SequencePiece& piece, const SequencePiece* before) {
  const std::string field = absl::StrCat("pieces[", index, "]");
  const bool same = before != nullptr && before->sequence == piece.sequence;
  if (piece.tokens < 1 || piece.tokens > kMaxRows || piece.start < 0 || piece.start > kMaxRows || piece.rows < 0 ||
      piece.rows > piece.tokens) {
    return Invalid(field, absl::StrCat(piece.rows, " rows of ", piece.tokens, " tokens from token ", piece.start));
  }
  if (before != nullptr && piece.sequence < before->sequence) return Invalid(field, "is not in order");
  if (piece.offset != (same ? before->offset + before->tokens : 0)) {
    return Invalid(field, absl::StrCat("begins at token ", piece.offset, ", not where the one before it ends"));
  }
  return absl::OkStatus();
}

absl::Status CheckPieces(const MicroBatchLayout& layout, absl::Span<const SequencePiece> pieces) {
  std::vector<int64_t> covered(layout.sequences.size(), 0);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const SequencePiece& piece = pieces[i];
    if (piece.sequence < 0 || piece.sequence >= static_cast<int64_t>(covered.size())) {
      return Invalid(absl::StrCat("pieces[", i, "]"), absl::StrCat("there is no sequence ", piece.sequence));
    }
    if (auto status = CheckPiece(i, piece, i == 0 ? nullptr : &pieces[i - 1]); !status.ok()) return status;
    covered[piece.sequence] += piece.tokens;
  }
  for (size_t i = 0; i < covered.size(); ++i) {
    if (covered[i] == layout.sequences[i].tokens) continue;
    return Invalid(absl::StrCat("sequences[", i, "]"),
                   absl::StrCat("its pieces have ", covered[i], " tokens, it has ", layout.sequences[i].tokens));
  }
  return absl::OkStatus();
}

// The entries of `run` that show rows [begin, end) of its sequence, as rows of a piece.
void AddPart(const RowRun& run, int64_t begin, int64_t end, RowState state, int32_t index, const SequencePiece& piece,
             RowMap& out) {
  const int64_t first = std::clamp<int64_t>(begin - run.row, 0, run.count);
  const int64_t last = std::clamp<int64_t>(end - run.row, first, run.count);
  if (first == last) return;
  RowRun part = run.Part(first, last);
  part.sequence = index;
  part.row += piece.start - piece.offset;
  part.state = state;
  int64_t& rows = piece.live ? out.live_rows : out.unrecorded_rows;
  (state == RowState::kReplayed ? out.replayed_rows : rows) += part.count;
  out.runs.push_back(part);
}

}  // namespace

absl::StatusOr<std::vector<SequenceShape>> SequencesFromMask(absl::Span<const uint8_t> mask, int64_t width,
                                                             bool keep_left_padding) {
  const int64_t size = static_cast<int64_t>(mask.size());
  if (width < 1 || size % width != 0) {
    return Invalid(Reason::kShape, "attention_mask", absl::StrCat(size, " values are no rows of ", width));
  }
  if (std::any_of(mask.begin(), mask.end(), [](uint8_t value) { return value > 1; })) {
    return Invalid("attention_mask", "has a value that is neither 0 nor 1");
  }
  std::vector<SequenceShape> sequences;
  for (int64_t b = 0; b < size / width; ++b) {
    const absl::Span<const uint8_t> row = mask.subspan(b * width, width);
    const auto begin = std::find(row.begin(), row.end(), 1);
    const auto end = std::find(begin, row.end(), 0);
    if (std::find(end, row.end(), 1) != row.end()) {
      return Invalid(Reason::kShape, absl::StrCat("attention_mask[", b, "]"),
                     absl::StrCat("has padding at column ", end - row.begin(), " between tokens"));
    }
    sequences.push_back(WholeSample(end - begin));
    if (keep_left_padding && begin != row.end()) sequences.back().first_row = begin - row.begin();
  }
  return sequences;
}

absl::StatusOr<std::vector<SequenceShape>> SequencesFromCuSeqlens(absl::Span<const int64_t> cu_seqlens) {
  if (cu_seqlens.empty() || cu_seqlens.front() != 0) {
    return Invalid(Reason::kShape, "cu_seqlens", "does not start at 0");
  }
  std::vector<SequenceShape> sequences;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    if (cu_seqlens[i] < cu_seqlens[i - 1]) {
      return Invalid(Reason::kShape, "cu_seqlens",
                     absl::StrCat("entry ", i, " descends from ", cu_seqlens[i - 1], " to ", cu_seqlens[i]));
    }
    sequences.push_back(WholeSample(cu_seqlens[i] - cu_seqlens[i - 1]));
  }
  return sequences;
}

absl::StatusOr<int64_t> MediaExpandedTokens(int64_t tokens, absl::Span<const int64_t> media_rows) {
  if (tokens < 0 || tokens > kMaxStreamRows) return Invalid("tokens", absl::StrCat(tokens, " cannot be"));
  if (static_cast<int64_t>(media_rows.size()) > tokens) {
    return Invalid(Reason::kShape, "media_rows", absl::StrCat(media_rows.size(), " media in ", tokens, " tokens"));
  }
  for (const int64_t rows : media_rows) {
    if (rows < 1 || rows > kMaxStreamRows || tokens > kMaxStreamRows - rows + 1) {
      return Invalid("media_rows", absl::StrCat(rows, " rows of a medium make a sample that cannot be"));
    }
    tokens += rows - 1;
  }
  return tokens;
}

absl::StatusOr<RowMap> ShowPieces(const RowMap& map, const MicroBatchLayout& layout,
                                  absl::Span<const SequencePiece> pieces) {
  if (auto status = CheckPieces(layout, pieces); !status.ok()) return status;
  RowMap out{.rows = map.rows};
  for (const RowRun& run : map.runs) {
    auto piece = std::lower_bound(pieces.begin(), pieces.end(), run.sequence,
                                  [](const SequencePiece& p, int32_t sequence) { return p.sequence < sequence; });
    for (; piece != pieces.end() && piece->sequence == run.sequence; ++piece) {
      const auto index = static_cast<int32_t>(piece - pieces.begin());
      const int64_t middle = piece->offset + piece->rows;
      AddPart(run, piece->offset, middle, RowState::kReplayed, index, *piece, out);
      const RowState without = piece->live ? RowState::kLive : RowState::kUnrecorded;
      AddPart(run, middle, piece->offset + piece->tokens, without, index, *piece, out);
    }
  }
  return out;
}

}  // namespace routing_replay::trainer
