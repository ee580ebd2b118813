// rows_*: compares the layout that we predict from a framework's options with the recorded one (`neutral`), and the
// rows at the router of every rank for that layout. If the framework's row order is known to be wrong, ours must be
// Megatron's.
#include <algorithm>
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

const Json& OrderOf(const Json& neutral) {
  static const Json& packed = *new Json("packed");
  return neutral.contains("row_order") ? neutral["row_order"] : packed;
}

// Whether a row map can be built for every rank.
absl::Status Accepts(const MicroBatchLayout& layout) {
  if (const auto map = trainer::BuildRowMap(layout, {}); !map.ok()) return map.status();
  for (int32_t c = 0; c < layout.cp_size; ++c) {
    for (int32_t t = 0; t < layout.tp_size; ++t) {
      if (const auto map = trainer::BuildRowMap(layout, {.cp_rank = c, .tp_rank = t}); !map.ok()) return map.status();
    }
  }
  return absl::OkStatus();
}

char Letter(RowState state) { return state == RowState::kReplayed ? 'R' : state == RowState::kUnrecorded ? 'U' : 'P'; }

// "[2, 5] R"
std::string Word(const Json& row, char state) { return absl::StrCat(row.dump(), " ", std::string(1, state)); }

trainer::RowRank RankOf(const Json& rank) {
  return {.cp_rank = rank.at("cp_rank").get<int32_t>(), .tp_rank = rank.at("tp_rank").get<int32_t>()};
}

// Compares the rows of one rank with `expected`, and their states with `states`. If there are no `states`, because
// `layout` has another order than the framework, the expected states are derived from the rows.
Outcome RunRows(const MicroBatchLayout& layout, const Json& neutral, const trainer::RowRank& rank, const Json& expected,
                const std::optional<std::string>& states) {
  const auto map = trainer::BuildRowMap(layout, rank);
  if (!map.ok()) return Failed(absl::StrCat("rejected: ", map.status().message()));
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

// Whether `ranks` contains every rank exactly once.
bool HasEachRank(const MicroBatchLayout& layout, const Json& ranks) {
  std::set<std::pair<int32_t, int32_t>> seen;
  for (const Json& rank : ranks) {
    const trainer::RowRank of = RankOf(rank);
    if (of.cp_rank < layout.cp_size && of.tp_rank < layout.tp_size) seen.insert({of.cp_rank, of.tp_rank});
  }
  return seen.size() == ranks.size() && ranks.size() == static_cast<size_t>(layout.cp_size * layout.tp_size);
}

// How many rows of a sequence verl's R3 replays (build_r3_replay_mask): at most T - 1, because it never replays the
// last token, and none if the response is empty.
int64_t VerlReplayedRows(int64_t tokens, int64_t recorded_rows, int64_t response_tokens) {
  return response_tokens > 0 ? std::clamp<int64_t>(tokens - 1, 0, recorded_rows) : 0;
}

// Compares our row map with the mask that the framework stores with the rows, in the framework's row order: replay_mask
// (verl; 1: the row is replayed) or router_padding_mask (1: the row is not replayed).
Outcome RunMasks(const MicroBatchLayout& layout, const Json& input, const Json& rank) {
  MicroBatchLayout masked = layout;
  const bool verl = rank.contains("replay_mask");
  if (!verl && !rank.contains("router_padding_mask")) return Passed();
  for (size_t i = 0; verl && i < masked.sequences.size(); ++i) {
    trainer::SequenceShape& shape = masked.sequences[i];
    shape.recorded_rows =
        VerlReplayedRows(shape.tokens, shape.recorded_rows, input.at("response_lengths").at(i).get<int64_t>());
  }
  const auto map = trainer::BuildRowMap(masked, RankOf(rank));
  if (!map.ok()) return Failed(absl::StrCat("rejected: ", map.status().message()));
  std::string ours;
  for (const trainer::LocalRow& row : trainer::ExpandRowMap(*map)) {
    ours += (row.state == RowState::kReplayed) == verl ? '1' : '0';
  }
  const std::string expected = rank[verl ? "replay_mask" : "router_padding_mask"].get<std::string>();
  if (ours == expected) return Passed();
  return Failed(absl::StrCat("the mask is ", ours, ", expected ", expected));
}

// Passes if our code rejects the case: either the recorded layout itself, or the layout that our policy predicts from
// the framework's options. If the recorded layout is missing or incomplete, and our code has no policy for the options
// (or the case has no options), nothing can be checked: the case then needs what is missing.
Outcome RunRowsError(const Json& input) {
  const Json neutral = input.value("neutral", Json());
  const Json completed = neutral.is_null() ? neutral : CompletedNeutral(neutral);
  if (!neutral.is_null() && !Accepts(NeutralLayout(completed, OrderOf(completed))).ok()) return Passed();
  const bool open = neutral.is_null() || completed != neutral;
  const Outcome accepted = Failed("accepted, expected a rejection");
  if (!HasPolicy(input)) return open ? Needs("the options of an open layout") : accepted;
  const auto policy = PolicyOf(input["framework"].get<std::string>(), input["options"]);
  if (!policy.ok())
    return open ? Needs(absl::StrCat("a policy that is known (", policy.status().message(), ")")) : accepted;
  const auto prediction = trainer::PredictPadding(BatchBefore(input), *policy);
  return prediction.ok() && Accepts(prediction->layout).ok() ? accepted : Passed();
}

// Checks rows, states and masks of one rank; if the framework's order is wrong, also Megatron's rows.
Outcome RunRank(const MicroBatchLayout& of_framework, const MicroBatchLayout& of_megatron, const Json& input,
                const Json& rank) {
  const Json& neutral = input.at("neutral");
  Outcome outcome = RunRows(of_framework, neutral, RankOf(rank), rank.at("rows"), rank.at("state").get<std::string>());
  if (outcome.verdict == Outcome::Verdict::kPassed) outcome = RunMasks(of_framework, input, rank);
  if (outcome.verdict == Outcome::Verdict::kPassed && rank.contains("megatron_rows")) {
    outcome = RunRows(of_megatron, neutral, RankOf(rank), rank["megatron_rows"], std::nullopt);
  }
  return outcome;
}

// Whether the framework's row order differs from the sequence-major order of Megatron's router.
bool HasWrongOrder(const Json& golden_case) {
  if (golden_case.at("input").value("known_wrong", false)) return true;
  const Json ranks = golden_case.at("expect").value("ranks", Json::array());
  return std::any_of(ranks.begin(), ranks.end(), [](const Json& rank) { return rank.contains("megatron_rows"); });
}

Outcome RunRows(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const Json& expect = golden_case.at("expect");
  if (expect.value("error", false)) return RunRowsError(input);
  const Json& neutral = input.at("neutral");
  if (std::string contradiction = NeutralContradiction(input); !contradiction.empty()) return Failed(contradiction);
  const MicroBatchLayout of_framework = NeutralLayout(neutral, OrderOf(neutral));
  const MicroBatchLayout of_megatron =
      HasWrongOrder(golden_case) ? NeutralLayout(neutral, "sequence_major") : of_framework;
  const Outcome policy = RunPolicy(input, of_megatron);
  if (policy.verdict != Outcome::Verdict::kPassed) return policy;
  if (expect.value("framework_fails", false) && !expect.contains("ranks")) {
    const absl::Status accepted = Accepts(of_megatron);
    return accepted.ok() ? policy : Failed(absl::StrCat("rejected: ", accepted.message()));
  }
  const Json& ranks = expect.at("ranks");
  if (!HasEachRank(of_framework, ranks)) return Failed("the case does not have every rank once");
  for (const Json& rank : ranks) {
    Outcome outcome = RunRank(of_framework, of_megatron, input, rank);
    if (outcome.verdict != Outcome::Verdict::kPassed) return outcome;
  }
  return policy;
}

}  // namespace

Kind RowsKind() { return {{"rows_"}, RunRows}; }

}  // namespace routing_replay::golden
