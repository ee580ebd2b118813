#include "trainer_plugin/layout/diagnosis/route_ids.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::trainer {
namespace {

absl::Status CheckShape(const char* field, const RouteIds& ids) {
  if (ids.rows >= 0 && ids.layers >= 0 && ids.top_k > 0 &&
      static_cast<int64_t>(ids.ids.size()) == ids.rows * ids.layers * ids.top_k) {
    return absl::OkStatus();
  }
  return Invalid(Reason::kShape, field,
                 absl::StrCat(ids.ids.size(), " ids are not [", ids.rows, "][", ids.layers, "][", ids.top_k, "]"));
}

absl::Status CheckRecorded(const Geometry& geometry, const RouteIds& ids, int32_t top_k) {
  if (absl::Status status = CheckShape("recorded", ids); !status.ok()) return status;
  if (ids.layers == geometry.num_moe_layers() && ids.top_k == top_k) return absl::OkStatus();
  return Invalid(Reason::kShape, "recorded",
                 absl::StrCat("[", ids.rows, "][", ids.layers, "][", ids.top_k, "] is not [rows][",
                              geometry.num_moe_layers(), "][", top_k, "]"));
}

}  // namespace

absl::Status WrongCount(const char* field, int64_t given, int64_t wanted, const char* what) {
  return Invalid(Reason::kShape, field, absl::StrCat(given, " are given, the rank has ", wanted, " ", what));
}

absl::Span<const int32_t> SlotsOf(const RouteIds& ids, int64_t row, int32_t layer) {
  return absl::MakeConstSpan(ids.ids).subspan((row * ids.layers + layer) * ids.top_k, ids.top_k);
}

absl::Status CheckIds(const Geometry& geometry, const MicroBatchLayout& layout, absl::Span<const RouteIds> recorded,
                      const RouteIds& observed, int64_t rows, int64_t layers) {
  if (absl::Status status = CheckShape("observed.ids", observed); !status.ok()) return status;
  if (observed.rows != rows) return WrongCount("observed.ids", observed.rows, rows, "local rows");
  if (observed.layers != layers) return WrongCount("observed.ids", observed.layers, layers, "MoE layers");
  if (recorded.size() != layout.sequences.size()) {
    return Invalid(Reason::kShape, "recorded",
                   absl::StrCat("of ", recorded.size(), " sequences, the micro-batch has ", layout.sequences.size()));
  }
  for (const RouteIds& ids : recorded) {
    absl::Status status = CheckRecorded(geometry, ids, observed.top_k);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RouteIds>> JoinPieces(const Geometry& geometry, const MicroBatchLayout& layout,
                                                 absl::Span<const SequencePiece> pieces,
                                                 absl::Span<const RouteIds> recorded) {
  if (pieces.size() != recorded.size()) {
    return Invalid(Reason::kShape, "recorded",
                   absl::StrCat("of ", recorded.size(), " pieces, the micro-batch has ", pieces.size()));
  }
  const int32_t top_k = recorded.empty() ? 1 : recorded.front().top_k;
  const int64_t stride = int64_t{geometry.num_moe_layers()} * top_k;
  std::vector<RouteIds> joined;
  for (const SequenceShape& sequence : layout.sequences) {
    joined.push_back({sequence.tokens, geometry.num_moe_layers(), top_k, {}});
    joined.back().ids.assign(sequence.tokens * stride, -1);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    const RouteIds& ids = recorded[i];
    if (absl::Status status = CheckRecorded(geometry, ids, top_k); !status.ok()) return status;
    const SequencePiece& piece = pieces[i];
    const int64_t rows = std::max<int64_t>(0, std::min(piece.rows, ids.rows - piece.start));
    std::copy_n(ids.ids.begin() + (rows > 0 ? piece.start * stride : 0), rows * stride,
                joined[piece.sequence].ids.begin() + piece.offset * stride);
  }
  return joined;
}

}  // namespace routing_replay::trainer
