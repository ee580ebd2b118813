#include "client/rrctl/compare/route_comparison.h"

#include <algorithm>

namespace routing_replay::client {
namespace {

absl::Span<const uint16_t> ChoiceAt(const DecodedRows& rows, int32_t ordinal, int64_t slot, int32_t top_k) {
  return absl::MakeConstSpan(rows.layers[ordinal]).subspan(slot * top_k, top_k);
}

// Walks the rows of a record with their slots.
class Cursor {
 public:
  explicit Cursor(absl::Span<const RowRange> ranges) : ranges_(ranges), row_(ranges.empty() ? 0 : ranges[0].begin) {}
  bool done() const { return at_ == ranges_.size(); }
  int64_t row() const { return row_; }
  int64_t slot() const { return slot_; }
  void Next() {
    ++slot_;
    if (++row_ < ranges_[at_].end) return;
    if (++at_ < ranges_.size()) row_ = ranges_[at_].begin;
  }

 private:
  const absl::Span<const RowRange> ranges_;
  size_t at_ = 0;
  int64_t row_;
  int64_t slot_ = 0;
};

}  // namespace

RouteComparison::RouteComparison(const Geometry& geometry) : geometry_(geometry), layers_(geometry.num_moe_layers()) {
  for (const LayerRouting& layer : geometry.layers()) sets_.emplace_back(layer.num_experts);
}

void RouteComparison::Add(const DecodedRows& a, const DecodedRows& b) {
  Cursor in_a(a.rows), in_b(b.rows);
  while (!in_a.done() || !in_b.done()) {
    if (in_b.done() || (!in_a.done() && in_a.row() < in_b.row())) {
      ++only_a_;
      in_a.Next();
    } else if (in_a.done() || in_b.row() < in_a.row()) {
      ++only_b_;
      in_b.Next();
    } else {
      ++rows_;
      differing_rows_ += CompareRow(in_a.row(), a, in_a.slot(), b, in_b.slot());
      in_a.Next();
      in_b.Next();
    }
  }
}

bool RouteComparison::CompareRow(int64_t row, const DecodedRows& a, int64_t slot_a, const DecodedRows& b,
                                 int64_t slot_b) {
  bool differs = false;
  for (int32_t ordinal = 0; ordinal < geometry_.num_moe_layers(); ++ordinal) {
    const int32_t top_k = geometry_.layer(ordinal).top_k;
    const auto ids_a = ChoiceAt(a, ordinal, slot_a, top_k);
    const auto ids_b = ChoiceAt(b, ordinal, slot_b, top_k);
    LayerDifferences& layer = layers_[ordinal];
    ++layer.choices;
    if (std::equal(ids_a.begin(), ids_a.end(), ids_b.begin())) continue;
    differs = true;
    const int32_t shared = sets_[ordinal].Shared(ids_a, ids_b);
    const bool same_set = shared == top_k;
    ++(same_set ? layer.order : layer.set);
    layer.disjoint += shared == 0;
    layer.replaced_ids += top_k - shared;
    if (first_) continue;
    first_ = {row, ordinal, same_set, {ids_a.begin(), ids_a.end()}, {ids_b.begin(), ids_b.end()}};
  }
  return differs;
}

}  // namespace routing_replay::client
