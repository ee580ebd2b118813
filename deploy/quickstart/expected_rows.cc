#include "deploy/quickstart/expected_rows.h"

#include <algorithm>

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

}  // namespace routing_replay::quickstart
