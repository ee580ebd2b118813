#include "tests/quickstart/expected_rows.h"

#include <algorithm>

#include "tests/reference/layer_layout_reference.h"
#include "tests/reference/token_layout_reference.h"

namespace routing_replay::quickstart {

using trainer::RowState;

std::vector<ExpectedRow> ExpectedRows(const trainer::MicroBatchLayout& layout, absl::Span<const TrueSequence> sequences,
                                      int32_t cp_rank, int32_t tp_rank) {
  std::vector<ExpectedRow> expected;
  for (const trainer::LocalRow& local : reference::LocalRows(layout, cp_rank, tp_rank)) {
    if (local.state == RowState::kPad) {
      expected.push_back({RowState::kPad, {}});
      continue;
    }
    const TrueSequence& truth = sequences[local.sequence];
    const bool lost = std::any_of(truth.unrecorded.begin(), truth.unrecorded.end(),
                                  [&](RowRange range) { return range.contains(local.row); });
    if (lost || local.row >= truth.routes.rows) {
      expected.push_back({RowState::kUnrecorded, {}});
      continue;
    }
    const int64_t row_ids = int64_t{truth.routes.layers} * truth.routes.top_k;
    expected.push_back(
        {RowState::kReplayed, absl::MakeConstSpan(truth.routes.ids).subspan(local.row * row_ids, row_ids)});
  }
  return expected;
}

std::vector<int32_t> ExpectedOrdinals(int32_t num_layers, int32_t pipeline_size, int32_t pp_rank) {
  const trainer::LayerSplit split{.num_layers = num_layers, .pipeline_size = pipeline_size};
  const bool last = pp_rank + 1 == pipeline_size;
  const int32_t end = last ? num_layers : reference::FirstLayer(split, pp_rank + 1, 0);
  std::vector<int32_t> ordinals;
  for (int32_t layer = reference::FirstLayer(split, pp_rank, 0); layer < end; ++layer) ordinals.push_back(layer);
  return ordinals;
}

}  // namespace routing_replay::quickstart
