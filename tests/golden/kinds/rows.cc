// rows_*: from a framework's options to the layout that was observed (`neutral`), and from that to the rows at the
// router of every rank. Where the framework's own order is known to be wrong, ours must be Megatron's.
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/rows.h"
#include "tests/golden/kind.h"
#include "tests/golden/kinds/framework_policy.h"
#include "tests/golden/kinds/neutral_layout.h"

namespace routing_replay::golden {
namespace {

using trainer::MicroBatchLayout;
using trainer::RowState;
using Lengths = std::vector<int64_t>;

// What an error case states, with valid values for all that it leaves open.
MicroBatchLayout CompletedLayout(const Json& neutral) {
  MicroBatchLayout layout = BasicLayout(neutral);
  const bool stated_total = neutral.contains("total_padded_rows");
  if (stated_total) layout.partition = trainer::Partition::kContiguous;
  const int64_t unit = stated_total ? 1 : int64_t{2} * layout.cp_size * layout.tp_size;
  layout.cu_seqlens_padded = {0};
  for (const trainer::SequenceShape& shape : layout.sequences) {
    layout.cu_seqlens_padded.push_back(layout.cu_seqlens_padded.back() + (shape.tokens + unit - 1) / unit * unit);
  }
  if (neutral.contains("cu_seqlens_padded")) layout.cu_seqlens_padded = neutral["cu_seqlens_padded"].get<Lengths>();
  layout.total_rows = neutral.value("total_padded_rows", layout.cu_seqlens_padded.back());
  return layout;
}

Outcome RunAccepted(const MicroBatchLayout& layout) {
  for (int32_t c = 0; c < layout.cp_size; ++c) {
    for (int32_t t = 0; t < layout.tp_size; ++t) {
      const auto map = trainer::BuildRowMap(layout, {.cp_rank = c, .tp_rank = t});
      if (!map.ok()) return Failed(absl::StrCat("refused: ", map.status().message()));
    }
  }
  return Passed();
}

char Letter(RowState state) { return state == RowState::kReplayed ? 'R' : state == RowState::kUnrecorded ? 'U' : 'P'; }

// "[2, 5] R"
std::string Word(const Json& row, char state) { return absl::StrCat(row.dump(), " ", std::string(1, state)); }

trainer::RowRank RankOf(const Json& rank) {
  return {.cp_rank = rank.at("cp_rank").get<int32_t>(), .tp_rank = rank.at("tp_rank").get<int32_t>(), .positions = {}};
}

// Rows of one rank against `expected`; their states against `states`, or, in another order than the framework's,
// against what follows from the row.
Outcome RunRows(const MicroBatchLayout& layout, const Json& neutral, const trainer::RowRank& rank, const Json& expected,
                const std::optional<std::string>& states) {
  const auto map = trainer::BuildRowMap(layout, rank);
  if (!map.ok()) return Failed(absl::StrCat("refused: ", map.status().message()));
  const std::string where = absl::StrCat("CP rank ", rank.cp_rank, ", TP rank ", rank.tp_rank, ": ");
  const int64_t size = static_cast<int64_t>(expected.size());
  if (map->rows != size || size != neutral.at("local_rows").get<int64_t>()) {
    return Failed(absl::StrCat(where, map->rows, " rows, expected ", size));
  }
  const std::vector<trainer::LocalRow> rows = trainer::ExpandRowMap(*map);
  for (int64_t i = 0; i < size; ++i) {
    const bool pad = rows[i].state == RowState::kPad;
    const Json ours = pad ? Json{-1, -1} : Json{rows[i].sequence, rows[i].row};
    char state = pad ? 'P' : rows[i].row < neutral.at("rows_available").at(rows[i].sequence) ? 'R' : 'U';
    if (states) state = states->at(i);
    if (ours != expected[i] || Letter(rows[i].state) != state) {
      return Failed(absl::StrCat(where, "row ", i, " shows ", Word(ours, Letter(rows[i].state)), ", expected ",
                                 Word(expected[i], state)));
    }
  }
  return Passed();
}

// Whether `ranks` has every rank once.
bool HasEachRank(const MicroBatchLayout& layout, const Json& ranks) {
  std::set<std::pair<int32_t, int32_t>> seen;
  for (const Json& rank : ranks) {
    const trainer::RowRank of = RankOf(rank);
    if (of.cp_rank < layout.cp_size && of.tp_rank < layout.tp_size) seen.insert({of.cp_rank, of.tp_rank});
  }
  return seen.size() == ranks.size() && ranks.size() == static_cast<size_t>(layout.cp_size * layout.tp_size);
}

// The masks that frameworks put beside the rows, in their order.
Outcome RunMasks(const MicroBatchLayout& layout, const Json& input, const Json& rank) {
  MicroBatchLayout masked = layout;
  const bool verl = rank.contains("replay_mask");
  if (!verl && !rank.contains("router_padding_mask")) return Passed();
  for (size_t i = 0; verl && i < masked.sequences.size(); ++i) {
    trainer::SequenceShape& shape = masked.sequences[i];
    shape.recorded_rows =
        trainer::VerlReplayedRows(shape.tokens, shape.recorded_rows, input.at("response_lengths").at(i).get<int64_t>());
  }
  const auto map = trainer::BuildRowMap(masked, RankOf(rank));
  if (!map.ok()) return Failed(absl::StrCat("refused: ", map.status().message()));
  std::string ours;
  for (const trainer::LocalRow& row : trainer::ExpandRowMap(*map)) {
    ours += (row.state == RowState::kReplayed) == verl ? '1' : '0';
  }
  const std::string expected = rank[verl ? "replay_mask" : "router_padding_mask"].get<std::string>();
  if (ours == expected) return Passed();
  return Failed(absl::StrCat("the mask is ", ours, ", expected ", expected));
}

// Refused by the rows themselves, or by what follows from the framework's options.
Outcome RunError(const Json& input) {
  if (input.contains("neutral") && !trainer::BuildRowMap(CompletedLayout(input["neutral"]), {}).ok()) return Passed();
  if (!HasPolicy(input)) return Failed("accepted, expected a refusal");
  const auto policy = PolicyOf(input.at("framework").get<std::string>(), input.at("options"));
  if (!policy.ok()) return Failed(std::string(policy.status().message()));
  const auto prediction = trainer::PredictPadding(BatchBefore(input), *policy);
  if (!prediction.ok() || !trainer::BuildRowMap(prediction->layout, {}).ok()) return Passed();
  return Failed("accepted, expected a refusal");
}

Outcome Run(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const Json& expect = golden_case.at("expect");
  if (expect.value("error", false)) return RunError(input);
  const Json& neutral = input.at("neutral");
  const Json no_order = "packed";
  const Json& order = neutral.contains("row_order") ? neutral["row_order"] : no_order;
  const MicroBatchLayout of_framework = NeutralLayout(neutral, order);
  const MicroBatchLayout of_megatron = NeutralLayout(neutral, input.value("megatron_row_order", order));
  const bool framework_fails = expect.value("framework_fails", false);
  if (HasPolicy(input)) {
    Outcome outcome = RunPolicy(input, of_megatron, framework_fails);
    if (outcome.verdict != Outcome::Verdict::kPassed) return outcome;
  }
  if (framework_fails && !expect.contains("ranks")) return RunAccepted(of_megatron);
  const Json& ranks = expect.at("ranks");
  if (!HasEachRank(of_framework, ranks)) return Failed("the case does not have every rank once");
  for (const Json& rank : ranks) {
    Outcome outcome =
        RunRows(of_framework, neutral, RankOf(rank), rank.at("rows"), rank.at("state").get<std::string>());
    if (outcome.verdict == Outcome::Verdict::kPassed) outcome = RunMasks(of_framework, input, rank);
    if (outcome.verdict == Outcome::Verdict::kPassed && rank.contains("megatron_rows")) {
      outcome = RunRows(of_megatron, neutral, RankOf(rank), rank["megatron_rows"], std::nullopt);
    }
    if (outcome.verdict != Outcome::Verdict::kPassed) return outcome;
  }
  return Passed();
}

}  // namespace

Kind RowsKind() { return {{"rows_"}, Run}; }

}  // namespace routing_replay::golden
