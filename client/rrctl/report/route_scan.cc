#include "client/rrctl/report/route_scan.h"

#include <algorithm>

namespace routing_replay::client {
namespace {

constexpr int64_t kNoRow = -2;  // No row is its neighbour.

}  // namespace

RouteScan::RouteScan(const Geometry& geometry, size_t bins)
    : geometry_(geometry),
      neighbours_(geometry.num_moe_layers()),
      bin_rows_(bins),
      counts_(bins),
      last_row_(kNoRow),
      last_(geometry.num_moe_layers()) {
  for (const LayerRouting& layer : geometry.layers()) {
    sets_.emplace_back(layer.num_experts);
    for (auto& bin : counts_) bin.emplace_back(layer.num_experts);
  }
}

void RouteScan::BeginSample() { last_row_ = kNoRow; }

void RouteScan::Add(const DecodedRows& rows, absl::Span<const BinnedRows> bins) {
  if (rows.rows.empty()) return;
  for (int32_t ordinal = 0; ordinal < geometry_.num_moe_layers(); ++ordinal) CountNeighbours(rows, ordinal);
  last_row_ = rows.rows.back().end - 1;
  CountBins(rows, bins);
}

void RouteScan::CountNeighbours(const DecodedRows& rows, int32_t ordinal) {
  const int32_t top_k = geometry_.layer(ordinal).top_k;
  const auto ids = absl::MakeConstSpan(rows.layers[ordinal]);
  Neighbours& found = neighbours_[ordinal];
  absl::Span<const uint16_t> before = last_[ordinal];
  int64_t row_before = last_row_, slot = 0;
  for (const RowRange range : rows.rows) {
    for (int64_t row = range.begin; row < range.end; ++row, ++slot) {
      const auto choice = ids.subspan(slot * top_k, top_k);
      if (row == row_before + 1) {
        ++found.pairs;
        found.shared_ids += sets_[ordinal].Shared(before, choice);
      }
      before = choice;
      row_before = row;
    }
  }
  last_[ordinal] = std::vector<uint16_t>(before.begin(), before.end());
}

void RouteScan::CountBins(const DecodedRows& rows, absl::Span<const BinnedRows> bins) {
  int64_t slot = 0;
  for (const RowRange range : rows.rows) {
    for (const BinnedRows& part : bins) {
      const RowRange counted = Intersect(range, part.rows);
      if (counted.empty()) continue;
      bin_rows_[part.bin] += counted.size();
      for (int32_t ordinal = 0; ordinal < geometry_.num_moe_layers(); ++ordinal) {
        const int32_t top_k = geometry_.layer(ordinal).top_k;
        const auto ids = absl::MakeConstSpan(rows.layers[ordinal])
                             .subspan((slot + counted.begin - range.begin) * top_k, counted.size() * top_k);
        for (const uint16_t id : ids) ++counts_[part.bin][ordinal][id];
      }
    }
    slot += range.size();
  }
}

}  // namespace routing_replay::client
