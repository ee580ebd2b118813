#include "routing_replay/trainer/diagnose.h"

#include <algorithm>
#include <utility>

#include "trainer_plugin/layout/diagnosis/mistakes.h"
#include "trainer_plugin/layout/diagnosis/route_ids.h"

namespace routing_replay::trainer {
namespace {

// Ways come with the right one first and simple mistakes before composed ones: of equals the first stays in front.
void SortBestFirst(std::vector<Explanation>& explanations) {
  std::stable_sort(explanations.begin(), explanations.end(), [](const Explanation& a, const Explanation& b) {
    return a.matched * b.compared > b.matched * a.compared;
  });
}

RouteIds Sorted(const RouteIds& given) {
  RouteIds sorted = given;
  for (size_t at = 0; at < sorted.ids.size(); at += sorted.top_k) {
    std::sort(sorted.ids.begin() + at, sorted.ids.begin() + at + sorted.top_k);
  }
  return sorted;
}

std::vector<RouteIds> Sorted(absl::Span<const RouteIds> given) {
  std::vector<RouteIds> sorted;
  for (const RouteIds& ids : given) sorted.push_back(Sorted(ids));
  return sorted;
}

// Compares ids that were seen with recorded ones.
class IdMatcher {
 public:
  IdMatcher(const Geometry& geometry, absl::Span<const RouteIds> recorded, const RouteIds& observed)
      : geometry_(geometry), recorded_(Sorted(recorded)), observed_(Sorted(observed)) {}

  // Pairs of a local row and a layer that are the same, of all where the way replays something.
  std::pair<int64_t, int64_t> Count(const RowWay& rows, const LayerWay& layers) const {
    int64_t matched = 0, compared = 0;
    for (size_t slot = 0; slot < layers.layers.size(); ++slot) {
      const std::optional<int32_t> ordinal = geometry_.FindOrdinal(layers.layers[slot]);
      for (size_t i = 0; i < rows.rows.size(); ++i) {
        if (rows.rows[i].state != RowState::kReplayed) continue;
        ++compared;
        matched += ordinal && Matches(rows.rows[i], *ordinal, static_cast<int64_t>(i), static_cast<int32_t>(slot));
      }
    }
    return {matched, compared};
  }

 private:
  bool Matches(const LocalRow& row, int32_t ordinal, int64_t local_row, int32_t slot) const {
    const RouteIds& recorded = recorded_[row.sequence];
    return row.row < recorded.rows && SlotsOf(recorded, row.row, ordinal) == SlotsOf(observed_, local_row, slot);
  }

  const Geometry& geometry_;
  std::vector<RouteIds> recorded_;
  RouteIds observed_;
};

}  // namespace

absl::StatusOr<std::vector<Explanation>> ExplainRows(const MicroBatchLayout& layout, const RowRank& rank,
                                                     absl::Span<const LocalRow> observed) {
  const auto ways = RowWays(layout, rank);
  if (!ways.ok()) return ways.status();
  const auto rows = static_cast<int64_t>(ways->front().rows.size()), given = static_cast<int64_t>(observed.size());
  if (given != rows) return WrongCount("observed.rows", given, rows, "local rows");
  std::vector<Explanation> explanations;
  for (const RowWay& way : *ways) {
    Explanation explanation{way.mistakes, way.what, 0, rows};
    for (int64_t i = 0; i < rows; ++i) explanation.matched += SameRow(way.rows[i], observed[i]);
    explanations.push_back(std::move(explanation));
  }
  SortBestFirst(explanations);
  return explanations;
}

absl::StatusOr<std::vector<Explanation>> ExplainLayers(const Geometry& geometry, const LayerSplit& split,
                                                       const PlanRank& rank, absl::Span<const int32_t> observed) {
  const auto ways = LayerWays(geometry, split, rank);
  if (!ways.ok()) return ways.status();
  const auto layers = static_cast<int64_t>(ways->front().layers.size()), given = static_cast<int64_t>(observed.size());
  if (given != layers) return WrongCount("observed.layers", given, layers, "MoE layers");
  std::vector<Explanation> explanations;
  for (const LayerWay& way : *ways) {
    Explanation explanation{way.mistakes, way.what, 0, layers};
    for (int64_t i = 0; i < layers; ++i) explanation.matched += way.layers[i] == observed[i];
    explanations.push_back(std::move(explanation));
  }
  SortBestFirst(explanations);
  return explanations;
}

absl::StatusOr<IdExplanation> ExplainIds(const Geometry& geometry, const LayerSplit& split,
                                         const MicroBatchLayout& layout, const PlanRank& rank,
                                         absl::Span<const RouteIds> recorded, const RouteIds& observed) {
  const auto row_ways = RowWays(layout, rank.rows);
  if (!row_ways.ok()) return row_ways.status();
  const auto layer_ways = LayerWays(geometry, split, rank);
  if (!layer_ways.ok()) return layer_ways.status();
  absl::Status status =
      CheckIds(geometry, layout, recorded, observed, static_cast<int64_t>(row_ways->front().rows.size()),
               static_cast<int64_t>(layer_ways->front().layers.size()));
  if (!status.ok()) return status;
  const IdMatcher matcher(geometry, recorded, observed);
  // A way that replays little could match by chance: at least as many pairs as the right way compares count.
  const int64_t least = matcher.Count(row_ways->front(), layer_ways->front()).second;
  std::optional<IdExplanation> best;
  // One mistake is likelier than two: pairs are tried in the order of the sum of their places.
  const size_t places = row_ways->size() + layer_ways->size() - 1;
  for (size_t sum = 0; sum < places; ++sum) {
    for (size_t r = 0; r <= sum && r < row_ways->size(); ++r) {
      if (sum - r >= layer_ways->size()) continue;
      const RowWay& rows = (*row_ways)[r];
      const LayerWay& layers = (*layer_ways)[sum - r];
      const auto [matched, compared] = matcher.Count(rows, layers);
      const int64_t weight = best ? std::max(least, best->rows.compared) : 1;
      if (best && matched * weight <= best->rows.matched * std::max(least, compared)) continue;
      best = IdExplanation{{rows.mistakes, rows.what, matched, compared},
                           {layers.mistakes, layers.what, matched, compared}};
      if (matched == compared && compared > 0 && compared >= least) return *best;
    }
  }
  return *best;
}

}  // namespace routing_replay::trainer
