#include "routing_replay/trainer/plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::trainer {
namespace {

absl::Status CheckPieces(const MicroBatchLayout& layout, absl::Span<const SequencePiece> pieces) {
  std::vector<int64_t> covered(layout.sequences.size(), 0);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const SequencePiece& piece = pieces[i];
    const std::string field = absl::StrCat("pieces[", i, "]");
    if (piece.sequence < 0 || piece.sequence >= static_cast<int64_t>(covered.size())) {
      return Invalid(field, absl::StrCat("there is no sequence ", piece.sequence));
    }
    if (piece.tokens < 1 || piece.tokens > kMaxRows || piece.start < 0 || piece.start > kMaxRows || piece.rows < 0 ||
        piece.rows > piece.tokens) {
      return Invalid(field, absl::StrCat(piece.rows, " rows of ", piece.tokens, " tokens from token ", piece.start,
                                         " are out of range"));
    }
    if (piece.offset != covered[piece.sequence] || (i > 0 && piece.sequence < pieces[i - 1].sequence)) {
      return Invalid(field, absl::StrCat("at token ", piece.offset, " does not follow the piece before it"));
    }
    covered[piece.sequence] += piece.tokens;
  }
  for (size_t i = 0; i < covered.size(); ++i) {
    if (covered[i] == layout.sequences[i].tokens) continue;
    return Invalid(absl::StrCat("sequences[", i, "]"),
                   absl::StrCat("has ", layout.sequences[i].tokens, " tokens, but its pieces have ", covered[i]));
  }
  return absl::OkStatus();
}

// Adds the entries of `run` that show rows [begin, end) of its sequence to `out`, renumbered as rows of `piece`.
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

absl::StatusOr<RowMap> ShowPieces(const RowMap& map, const MicroBatchLayout& layout,
                                  absl::Span<const SequencePiece> pieces) {
  RR_RETURN_IF_ERROR(CheckPieces(layout, pieces));
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

absl::StatusOr<ReplayPlan> MakeReplayPlan(const Geometry& geometry, const LayerTable& table,
                                          const MicroBatchLayout& layout, const PlanRank& rank) {
  auto layers = OwnedMoeLayers(geometry, table, rank.pp_rank, rank.chunk);
  if (layers.ok()) layers = WithoutNativeLayers(geometry, *std::move(layers), rank.native_layers);
  if (!layers.ok()) return layers.status();
  return MakeReplayPlan(geometry, *std::move(layers), layout, rank.rows);
}

absl::StatusOr<ReplayPlan> MakeReplayPlan(const Geometry& geometry, std::vector<OwnedLayer> layers,
                                          const MicroBatchLayout& layout, const RowRank& rank,
                                          absl::Span<const SequencePiece> pieces) {
  absl::StatusOr<RowMap> map = BuildRowMap(layout, rank);
  if (map.ok() && !pieces.empty()) map = ShowPieces(*map, layout, pieces);
  if (!map.ok()) return map.status();
  ReplayPlan plan{.layers = std::move(layers), .row_map = *std::move(map)};
  if (plan.layers.empty()) return plan;
  std::vector<std::vector<RowRange>> rows =
      ReplayedRows(plan.row_map, static_cast<int32_t>(pieces.empty() ? layout.sequences.size() : pieces.size()));
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].empty()) continue;
    plan.rows_to_read += TotalRows(rows[i]);
    plan.slices.push_back({.sequence = static_cast<int32_t>(i), .rows = std::move(rows[i])});
  }
  for (const OwnedLayer& layer : plan.layers) {
    plan.routing.push_back(geometry.layer(layer.ordinal));
    plan.bytes_to_read += geometry.plane_bytes(layer.ordinal, plan.rows_to_read, Codec::kRaw);
  }
  return plan;
}

}  // namespace routing_replay::trainer
