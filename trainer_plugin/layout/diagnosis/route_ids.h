// Reading RouteIds, and checking what a caller gives as such.
#ifndef TRAINER_PLUGIN_LAYOUT_DIAGNOSIS_ROUTE_IDS_H_
#define TRAINER_PLUGIN_LAYOUT_DIAGNOSIS_ROUTE_IDS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/diagnose.h"
#include "routing_replay/trainer/pieces.h"

namespace routing_replay::trainer {

// INVALID_ARGUMENT (kShape): "`given` are given, the rank has `wanted` `what`".
absl::Status WrongCount(const char* field, int64_t given, int64_t wanted, const char* what);

// Ids of one row of one layer.
absl::Span<const int32_t> SlotsOf(const RouteIds& ids, int64_t row, int32_t layer);

// INVALID_ARGUMENT (kShape, fields "observed.ids" and "recorded") unless `observed` is of `rows` local rows and
// `layers` layers, and `recorded` of the micro-batch's sequences and all MoE layers.
absl::Status CheckIds(const Geometry& geometry, const MicroBatchLayout& layout, absl::Span<const RouteIds> recorded,
                      const RouteIds& observed, int64_t rows, int64_t layers);

// The record of each sequence out of those of its pieces, [rows of the sample] each; -1 where no piece has a row.
// INVALID_ARGUMENT (kShape, field "recorded") for another number of records, or shapes that do not fit.
absl::StatusOr<std::vector<RouteIds>> JoinPieces(const Geometry& geometry, const MicroBatchLayout& layout,
                                                 absl::Span<const SequencePiece> pieces,
                                                 absl::Span<const RouteIds> recorded);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_DIAGNOSIS_ROUTE_IDS_H_
