#include "routing_replay/trainer/plan.h"

#include <utility>

namespace routing_replay::trainer {

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
    plan.index_bytes += geometry.plane_bytes(layer.ordinal, plan.row_map.rows, Codec::kRaw);
    plan.padded_bytes += geometry.plane_bytes(layer.ordinal, plan.row_map.pad_rows(), Codec::kRaw);
  }
  return plan;
}

}  // namespace routing_replay::trainer
