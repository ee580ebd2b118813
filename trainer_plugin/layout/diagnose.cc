#include "routing_replay/trainer/diagnose.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/mistakes.h"

namespace routing_replay::trainer {
namespace {

// The ids of one row in one layer.
absl::Span<const int32_t> SlotsOf(const RouteIds& ids, int64_t row, int32_t layer) {
  return absl::MakeConstSpan(ids.ids).subspan((row * ids.layers + layer) * ids.top_k, ids.top_k);
}

absl::Status CheckIds(const MicroBatchLayout& layout, absl::Span<const RouteIds> recorded, const RouteIds& observed,
                      int64_t rows, int64_t layers) {
  if (observed.rows != rows || observed.layers != layers ||
      static_cast<int64_t>(observed.ids.size()) != rows * layers * observed.top_k) {
    return Invalid(Reason::kShape, "observed.ids",
                   absl::StrCat("has ", observed.ids.size(), " ids of ", observed.rows, " local rows and ",
                                observed.layers, " MoE layers, the rank has ", rows, " and ", layers));
  }
  if (recorded.size() != layout.sequences.size()) {
    return Invalid(Reason::kShape, "recorded",
                   absl::StrCat("has ", recorded.size(), " sequences, the micro-batch has ", layout.sequences.size()));
  }
  return absl::OkStatus();
}

constexpr double kDeviations = 4;

// Sums of common experts and of compared slots over (local row, layer) pairs.
struct Fit {
  int64_t pairs = 0;
  int64_t slots = 0;
  int64_t common = 0;

  void Add(const Fit& other) {
    pairs += other.pairs;
    slots += other.slots;
    common += other.common;
  }
  double share() const { return slots == 0 ? 0 : static_cast<double>(common) / static_cast<double>(slots); }
};

int64_t CountIds(absl::Span<const int32_t> slots) {
  return std::count_if(slots.begin(), slots.end(), [](int32_t id) { return id >= 0; });
}

int64_t CountCommon(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  return std::count_if(a.begin(), a.end(),
                       [&](int32_t id) { return id >= 0 && std::find(b.begin(), b.end(), id) != b.end(); });
}

class Comparison {
 public:
  explicit Comparison(const AlignmentInput& input) : input_(input) {}

  // Compares the experts that the router in slot `slot` chose for local row `local_row` with those that the record has
  // for `row` in MoE layer `ordinal`. Nothing is counted if `row` is not replayed or one of the two has no ids.
  Fit Pair(const LocalRow& row, int64_t local_row, std::optional<int32_t> ordinal, int32_t slot) const {
    if (row.state != RowState::kReplayed || !ordinal) return {};
    const RouteIds& recorded = input_.recorded[row.sequence];
    if (row.row >= recorded.rows) return {};
    const auto theirs = SlotsOf(recorded, row.row, *ordinal), live = SlotsOf(input_.live, local_row, slot);
    const int64_t slots = std::min(CountIds(theirs), CountIds(live));
    return slots == 0 ? Fit{} : Fit{.pairs = 1, .slots = slots, .common = CountCommon(theirs, live)};
  }

  // Calls `of`(local row, slot, fit) for every (local row, slot) whose experts could be compared.
  template <typename Of>
  void ForEach(const RowWay& rows, const LayerWay& layers, Of of) const {
    for (size_t slot = 0; slot < layers.seen.size(); ++slot) {
      const std::optional<int32_t> ordinal = input_.geometry.FindOrdinal(layers.seen[slot]);
      for (size_t i = 0; i < rows.seen.size(); ++i) {
        const Fit fit = Pair(rows.seen[i], static_cast<int64_t>(i), ordinal, static_cast<int32_t>(slot));
        if (fit.pairs > 0) of(i, slot, fit);
      }
    }
  }

  Fit Total(const RowWay& rows, const LayerWay& layers) const {
    Fit total;
    ForEach(rows, layers, [&](size_t, size_t, const Fit& fit) { total.Add(fit); });
    return total;
  }

  // Returns what `own.common` of one slot would be by chance, that is, if each row were compared with the records of
  // the other rows. Computed from the frequency of each expert.
  double ChanceOf(const RowWay& rows, int32_t layer_id, int32_t slot, const Fit& own) const {
    const std::optional<int32_t> ordinal = input_.geometry.FindOrdinal(layer_id);
    if (own.pairs < 2) return static_cast<double>(own.common);
    std::vector<int64_t> recorded(input_.geometry.layer(*ordinal).num_experts), live(recorded.size());
    for (size_t i = 0; i < rows.seen.size(); ++i) {
      if (Pair(rows.seen[i], static_cast<int64_t>(i), ordinal, slot).pairs == 0) continue;
      CountEach(SlotsOf(input_.recorded[rows.seen[i].sequence], rows.seen[i].row, *ordinal), recorded);
      CountEach(SlotsOf(input_.live, static_cast<int64_t>(i), slot), live);
    }
    double meetings = -static_cast<double>(own.common);
    for (size_t id = 0; id < live.size(); ++id) meetings += static_cast<double>(recorded[id]) * live[id];
    return std::max(0.0, meetings / static_cast<double>(own.pairs - 1));
  }

 private:
  static void CountEach(absl::Span<const int32_t> ids, std::vector<int64_t>& counts) {
    for (const int32_t id : ids) {
      if (id >= 0 && id < static_cast<int64_t>(counts.size())) ++counts[id];
    }
  }

  const AlignmentInput& input_;
};

double KeptShare(double share, double chance) { return chance >= 1 ? 1 : (share - chance) / (1 - chance); }

// Returns true if these pairs have too few experts in common to be explained by a drift of the weights.
bool IsLost(const Fit& fit, double chance) {
  if (fit.pairs < kLeastPairs || chance >= 1) return false;
  const double pairs = static_cast<double>(fit.pairs), share = std::max(fit.share(), 1 / pairs);
  const double deviation = std::sqrt(share * std::max(0.0, 1 - share) / pairs) / (1 - chance);
  return KeptShare(fit.share(), chance) + kDeviations * deviation < kLeastKept;
}

// Finds the part (a sequence or a layer) that fits worst, among those with kLeastPairs pairs if there are any.
std::optional<size_t> Worst(const std::vector<Fit>& parts) {
  std::optional<size_t> worst;
  for (const int64_t least : {kLeastPairs, int64_t{1}}) {
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].pairs >= least && (!worst || parts[i].share() < parts[*worst].share())) worst = i;
    }
    if (worst) break;
  }
  return worst;
}

// How well the plan fits: in total, by sequence and by layer.
struct Planned {
  Fit total;
  std::vector<Fit> sequences, layers;
  double chance = 0;

  bool lost() const {
    const auto is_lost = [&](const Fit& fit) { return IsLost(fit, chance); };
    return is_lost(total) || std::any_of(sequences.begin(), sequences.end(), is_lost) ||
           std::any_of(layers.begin(), layers.end(), is_lost);
  }
};

Planned CountPlanned(const Comparison& comparison, const RowWay& rows, const LayerWay& layers, size_t sequences) {
  Planned planned{.sequences = std::vector<Fit>(sequences), .layers = std::vector<Fit>(layers.seen.size())};
  comparison.ForEach(rows, layers, [&](size_t i, size_t slot, const Fit& fit) {
    planned.total.Add(fit);
    planned.sequences[rows.seen[i].sequence].Add(fit);
    planned.layers[slot].Add(fit);
  });
  double common = 0;
  for (size_t slot = 0; slot < layers.seen.size(); ++slot) {
    common += comparison.ChanceOf(rows, layers.seen[slot], static_cast<int32_t>(slot), planned.layers[slot]);
  }
  if (planned.total.slots > 0) planned.chance = common / static_cast<double>(planned.total.slots);
  return planned;
}

template <typename Part>
Explanation Explain(const AlignmentInput& input, const Way<Part>& way, const Fit& fit) {
  if (input.replayed) return {way.mistakes, way.what, fit.common, fit.slots};
  return {{way.reversed.name}, way.reversed.what, fit.common, fit.slots};
}

}  // namespace

absl::StatusOr<std::vector<RouteIds>> JoinPieces(const Geometry& geometry, const MicroBatchLayout& layout,
                                                 absl::Span<const SequencePiece> pieces,
                                                 absl::Span<const RouteIds> recorded) {
  if (pieces.size() != recorded.size()) {
    return Invalid(Reason::kShape, "recorded",
                   absl::StrCat("has ", recorded.size(), " pieces, the micro-batch has ", pieces.size()));
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
    const SequencePiece& piece = pieces[i];
    const int64_t rows = std::max<int64_t>(0, std::min(piece.rows, ids.rows - piece.start));
    std::copy_n(ids.ids.begin() + (rows > 0 ? piece.start * stride : 0), rows * stride,
                joined[piece.sequence].ids.begin() + piece.offset * stride);
  }
  return joined;
}

absl::StatusOr<Alignment> JudgeAlignment(const AlignmentInput& input) {
  RR_ASSIGN_OR_RETURN(const auto row_ways, RowWays(input.layout, input.rank.rows));
  RR_ASSIGN_OR_RETURN(const auto layer_ways, LayerWays(input.geometry, input.split, input.rank));
  RR_RETURN_IF_ERROR(CheckIds(input.layout, input.recorded, input.live,
                              static_cast<int64_t>(row_ways.front().seen.size()),
                              static_cast<int64_t>(layer_ways.front().seen.size())));
  const Comparison comparison(input);
  const Planned planned = CountPlanned(comparison, row_ways.front(), layer_ways.front(), input.layout.sequences.size());
  Alignment alignment{.kept = KeptShare(planned.total.share(), planned.chance), .chance = planned.chance};
  alignment.explained_kept = alignment.kept;
  alignment.rows = Explain(input, row_ways.front(), planned.total);
  alignment.layers = Explain(input, layer_ways.front(), planned.total);
  if (const auto worst = Worst(planned.sequences)) alignment.sequence = static_cast<int32_t>(*worst);
  if (const auto worst = Worst(planned.layers)) alignment.layer_id = layer_ways.front().seen[*worst];
  // If another way fits hardly better than the plan, this is chance, and naming it would mislead.
  double best = alignment.kept + (input.replayed ? 0 : kLeastKept);
  for (const RowWay& rows : row_ways) {
    for (const LayerWay& layers : layer_ways) {
      const Fit fit = comparison.Total(rows, layers);
      // (Row, layer) pairs that this combination of rows and layers does not cover count as not explained.
      const double slots = static_cast<double>(std::max(fit.slots, planned.total.slots));
      const double kept = slots == 0 ? 0 : KeptShare(static_cast<double>(fit.common) / slots, planned.chance);
      if (kept <= best) continue;
      alignment.explained_kept = best = kept;
      alignment.rows = Explain(input, rows, fit);
      alignment.layers = Explain(input, layers, fit);
    }
  }
  const bool explained = planned.total.pairs >= kLeastPairs && alignment.explained_kept > alignment.kept;
  alignment.misaligned = explained || planned.lost();
  return alignment;
}

}  // namespace routing_replay::trainer
