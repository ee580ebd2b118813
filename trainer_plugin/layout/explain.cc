#include "trainer_plugin/layout/explain.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::trainer {
namespace {

constexpr int64_t kMaxExplainedRanks = 4096;

// Local rows that no run names, in ranges.
std::vector<LocalRows> Padding(const RowMap& map) {
  const std::vector<LocalRow> rows = ExpandRowMap(map);
  std::vector<LocalRows> padding;
  for (int64_t i = 0; i < map.rows; ++i) {
    if (rows[i].state != RowState::kPad) continue;
    if (padding.empty() || padding.back().end < i) padding.push_back({i, i});
    padding.back().end = i + 1;
  }
  return padding;
}

// A run that goes on where the last one ended is drawn as one.
void AddLocalRows(std::vector<LocalRows>& at, const RowRun& run) {
  const int64_t end = run.local_row + (run.count - 1) * run.stride + 1;
  if (!at.empty() && at.back().stride == run.stride && at.back().end - 1 + run.stride == run.local_row) {
    at.back().end = end;
  } else {
    at.push_back({run.local_row, end, run.stride});
  }
}

void AddRank(const RowMap& map, int32_t cp_rank, std::optional<int32_t> tp_rank, size_t sequences,
             std::vector<HeldRows>& held) {
  std::vector<HeldRows> of(sequences);
  for (size_t i = 0; i < sequences; ++i) of[i] = {static_cast<int32_t>(i), cp_rank, tp_rank, {}, {}, {}};
  for (const RowRun& run : map.runs) {
    HeldRows& rows = of[run.sequence];
    (run.state == RowState::kReplayed ? rows.replayed : rows.unrecorded)
        .push_back(RowRange::OfSize(run.row, run.count));
    AddLocalRows(rows.at, run);
  }
  for (HeldRows& rows : of) {
    Normalize(rows.replayed);  // Positions that a trainer states may come in any order, and twice.
    Normalize(rows.unrecorded);
    if (!rows.at.empty()) held.push_back(std::move(rows));
  }
  HeldRows padding{std::nullopt, cp_rank, tp_rank, {}, {}, Padding(map)};
  if (!padding.at.empty()) held.push_back(std::move(padding));
}

absl::StatusOr<std::vector<RowRank>> RanksOf(const MicroBatchLayout& layout, const RowRank& rank) {
  if (layout.partition == Partition::kExplicit) return std::vector<RowRank>{rank};
  if (absl::Status status = BuildRowMap(layout, rank).status(); !status.ok()) return status;
  const int64_t count = int64_t{layout.cp_size} * (layout.sequence_parallel ? layout.tp_size : 1);
  if (count > kMaxExplainedRanks) {
    return Invalid("cp_size", absl::StrCat(count, " ranks of one micro-batch are more than the ", kMaxExplainedRanks,
                                           " that are explained"));
  }
  std::vector<RowRank> ranks;
  for (int32_t cp = 0; cp < layout.cp_size; ++cp) {
    for (int32_t tp = 0; tp < (layout.sequence_parallel ? layout.tp_size : 1); ++tp) ranks.push_back({cp, tp, {}});
  }
  return ranks;
}

}  // namespace

absl::StatusOr<std::vector<HeldRows>> ExplainMicroBatch(const MicroBatchLayout& layout, const RowRank& rank) {
  std::vector<HeldRows> held;
  const absl::StatusOr<std::vector<RowRank>> ranks = RanksOf(layout, rank);
  if (!ranks.ok()) return ranks.status();
  for (const RowRank& one : *ranks) {
    const absl::StatusOr<RowMap> map = BuildRowMap(layout, one);
    if (!map.ok()) return map.status();
    const std::optional<int32_t> tp = layout.sequence_parallel ? std::optional(one.tp_rank) : std::nullopt;
    AddRank(*map, one.cp_rank, tp, layout.sequences.size(), held);
  }
  std::stable_sort(held.begin(), held.end(), [](const HeldRows& a, const HeldRows& b) {
    if (!a.sequence || !b.sequence) return a.sequence.has_value() && !b.sequence.has_value();
    return *a.sequence < *b.sequence;
  });
  return held;
}

absl::StatusOr<std::vector<HeldLayers>> ExplainLayerTable(const Geometry& geometry, const LayerTable& table) {
  std::vector<HeldLayers> held;
  for (int32_t pp = 0; pp < table.pipeline_size(); ++pp) {
    for (int32_t chunk = 0; chunk < table.virtual_stages(); ++chunk) {
      const auto owned = OwnedMoeLayers(geometry, table, pp, chunk);
      if (!owned.ok()) return owned.status();
      HeldLayers layers{
          pp, chunk, table.range(pp, chunk), {}, static_cast<int32_t>(owned->size()), table.mtp_layers(pp, chunk)};
      for (const OwnedLayer& layer : *owned) AppendMerged(layers.moe, {layer.layer_id, layer.layer_id + 1});
      held.push_back(std::move(layers));
    }
  }
  return held;
}

}  // namespace routing_replay::trainer
