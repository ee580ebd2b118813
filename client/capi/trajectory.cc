// Trajectories.
#include <utility>

#include "client/capi/objects.h"
#include "client/trajectory/turn_plan.h"
#include "proto/json/wire_json.h"
#include "routing_replay/wire/error_detail.h"

using namespace routing_replay;          // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;    // NOLINT(build/namespaces)
using namespace routing_replay::client;  // NOLINT(build/namespaces)

namespace {

using nlohmann::json;

absl::StatusOr<rr_trajectory> TrajectoryFrom(absl::string_view text) {
  const auto value = ParseJson(text, "trajectory");
  if (!value.ok()) return value.status();
  Trajectory::Options options;
  AppendOptions common;
  JsonObject object(*value, "trajectory");
  object.Require("sample");
  object.Read("sample", options.sample);
  object.Read("strict", options.strict);
  object.Read<Trajectory::Existing>("existing",
                                    {{"none", Trajectory::Existing::kNone},
                                     {"resume", Trajectory::Existing::kResume},
                                     {"replace", Trajectory::Existing::kReplace}},
                                    options.existing);
  ReadProducer(object, common.producer);
  object.Read("group", common.group);
  object.Read("engine", common.engine);
  if (absl::Status status = object.status(); !status.ok()) return status;
  if (absl::Status status = CheckId(options.sample, "sample"); !status.ok()) return status;
  return rr_trajectory{.trajectory = Trajectory(std::move(options)), .common = std::move(common)};
}

struct GivenTurn {
  Turn turn;
  int64_t row_start = 0;
  int64_t missing_rows = 0;
  std::string engine;
};

absl::StatusOr<GivenTurn> TurnFrom(absl::string_view text, absl::Span<const uint32_t> tokens) {
  const auto value = ParseJson(text, "turn");
  if (!value.ok()) return value.status();
  GivenTurn given;
  Turn& turn = given.turn;
  std::optional<int64_t> tokens_start, cut;
  JsonObject object(*value, "turn");
  object.Read("tokens_start", tokens_start);
  object.Read("row_start", given.row_start);
  object.Read("missing_rows", given.missing_rows);
  object.Read("engine", given.engine);
  object.Read<TurnOutcome>("outcome",
                           {{"finished", TurnOutcome::kFinished},
                            {"aborted", TurnOutcome::kAborted},
                            {"preempted", TurnOutcome::kPreempted}},
                           turn.outcome);
  object.Read("weight_version", turn.weight_version);
  object.Read("weight_label", turn.weight_label);
  object.Read("missing_is_unrecorded", turn.missing_is_unrecorded);
  object.Read("seal", turn.seal);
  object.Read("cut", cut);
  const json* weights = object.Find("weights");
  if (absl::Status status = object.status(); !status.ok()) return status;
  if (weights != nullptr) {
    if (absl::Status status = ReadWeights(*weights, turn.weights); !status.ok()) return status;
  }
  if (cut && *cut < 1) return Invalid(Reason::kField, "turn.cut", "a history has at least one token");
  if (given.row_start < 0 || given.row_start > kMaxRows)
    return Invalid(Reason::kField, "turn.row_start", "is out of range");
  if (given.missing_rows < 0 || given.missing_rows > kMaxRows)
    return Invalid(Reason::kField, "turn.missing_rows", "is out of range");
  turn.cut = cut.has_value();
  if (cut || tokens_start) {
    turn.tokens = cut ? absl::Span<const uint32_t>() : tokens;
    turn.tokens_start = cut.value_or(tokens_start.value_or(0));
  }
  return given;
}

const char* StepName(TurnDecision::Step step) {
  switch (step) {
    case TurnDecision::Step::kAsk:
      return "ask";
    case TurnDecision::Step::kTruncate:
      return "truncate";
    case TurnDecision::Step::kAppend:
      return "append";
  }
  return "";
}

json ToJson(const TurnPlan& plan) {
  const TurnDecision& d = plan.decision;
  json out = {{"step", StepName(d.step)}};
  if (d.step == TurnDecision::Step::kAsk) return out;
  out["num_tokens"] = d.num_tokens;
  if (d.retokenised_at) out["retokenised_at"] = *d.retokenised_at;
  if (d.step == TurnDecision::Step::kTruncate) {
    out["truncate_rows"] = d.truncate_rows;
    out["expected_revision"] = d.expected_revision;
    return out;
  }
  json appends = json::array();
  int64_t unrecorded = 0;
  for (const AppendPlan& append : plan.appends) {
    appends.push_back({append.pieces.front().header.rows.begin, append.pieces.back().header.rows.end});
    for (const AppendPiece& piece : append.pieces) unrecorded += TotalRows(piece.header.unrecorded);
  }
  out.update({{"appends", std::move(appends)},
              {"prefix_rows", d.prefix ? d.prefix->rows : 0},
              {"surplus_rows", d.surplus_rows},
              {"repeated_rows", d.prefix ? 0 : d.compare.size()},
              {"conflicting_rows", d.conflicting_rows},
              {"late_rows", d.late_rows},
              {"uncompared_rows", d.uncompared_rows},
              {"unrecorded_rows", unrecorded}});
  return out;
}

json ToJson(const TrajectoryCounters& c) {
  return {{"turns", c.turns},
          {"aborted_turns", c.aborted_turns},
          {"preempted_turns", c.preempted_turns},
          {"appended_rows", c.appended_rows},
          {"unrecorded_rows", c.unrecorded_rows},
          {"unrecorded_samples", c.unrecorded_samples},
          {"repeated_rows", c.repeated_rows},
          {"shared_rows", c.shared_rows},
          {"shared_by_tokens", c.shared_by_tokens},
          {"surplus_rows", c.surplus_rows},
          {"conflicting_rows", c.conflicting_rows},
          {"late_rows", c.late_rows},
          {"uncompared_rows", c.uncompared_rows},
          {"retokenised", c.retokenised},
          {"truncated_rows", c.truncated_rows},
          {"lost_rows", c.lost_rows},
          {"failed_appends", c.failed_appends}};
}

// What a trajectory asks of an outcome as rr_appender_take_finished gives it.
absl::StatusOr<AppendOutcome> OutcomeFrom(absl::string_view text) {
  const auto value = ParseJson(text, "outcome");
  if (!value.ok()) return value.status();
  AppendOutcome outcome;
  JsonObject object(*value, "outcome");
  object.Read("sample", outcome.sample);
  object.Read("committed_rows", outcome.committed_rows);
  object.Read("revision", outcome.revision);
  object.Read("conflicting_rows", outcome.conflicting_rows);
  object.Read("late_rows", outcome.late_rows);
  for (const char* key : {"sequence", "content_id", "sealed", "trimmed_rows", "unrecorded_rows", "unverified_rows"}) {
    object.Find(key);
  }
  if (object.Find("error") != nullptr) outcome.status = absl::UnknownError("the append failed");
  if (absl::Status status = object.status(); !status.ok()) return status;
  return outcome;
}

absl::StatusOr<std::optional<SampleState>> StateFrom(absl::string_view text) {
  auto states = StatesFrom(text);
  if (!states.ok()) return states.status();
  if (states->size() > 1) return Invalid(Reason::kField, "states", "are more than one");
  for (const SampleState& state : *states) {
    const RowRange rows{0, state.committed_rows};
    if (rows.end < 0 || rows.end > kMaxRows) return Invalid(Reason::kField, "states.committed_rows", "is out of range");
    if (absl::Status status = CheckNormal(state.unrecorded, rows); !status.ok()) {
      return Invalid(Reason::kField, "states.unrecorded", status.message());
    }
  }
  std::optional<SampleState> found;
  if (!states->empty()) found = std::move(states->front());
  return found;
}

}  // namespace

rr_error* rr_trajectory_new(const char* json, size_t size, rr_trajectory** trajectory) {
  return Guard([&] {
    auto made = TrajectoryFrom(Text(json, size));
    if (!made.ok()) return made.status();
    *trajectory = new rr_trajectory(*std::move(made));
    return absl::OkStatus();
  });
}

rr_error* rr_trajectory_fork(const rr_trajectory* parent, const char* sample, size_t size, rr_trajectory** fork) {
  return Guard([&] {
    absl::Status status = CheckId(Text(sample, size), "sample");
    if (status.ok()) {
      *fork = new rr_trajectory{.trajectory = parent->trajectory.Fork(std::string(Text(sample, size))),
                                .common = parent->common};
    }
    return status;
  });
}

void rr_trajectory_free(rr_trajectory* trajectory) { delete trajectory; }

rr_error* rr_trajectory_turn(rr_trajectory* trajectory, const rr_run* run, const char* turn, size_t turn_size,
                             const uint32_t* tokens, size_t token_count, const char* tensor, size_t tensor_size,
                             const void* payload, size_t payload_size, rr_bytes** decision) {
  return Guard([&]() -> absl::Status {
    const auto given = TurnFrom(Text(turn, turn_size), Tokens(tokens, token_count));
    if (!given.ok()) return given.status();
    std::optional<TurnRows> rows;
    if (tensor_size > 0) {
      auto taken = TakenTensorFromJson(Text(tensor, tensor_size));
      if (!taken.ok()) return taken.status();
      rows = {std::move(taken->description),
              Bytes(payload, payload_size),
              taken->ids_and_weights,
              taken->take,
              given->row_start,
              given->missing_rows};
    }
    AppendOptions common = trajectory->common;
    if (!given->engine.empty()) common.engine = given->engine;
    const RunInfo& info = run->info;
    auto plan =
        PlanTurn(given->turn, rows ? &*rows : nullptr, common, info.geometry, info.blocks(), trajectory->trajectory);
    if (!plan.ok()) return plan.status();
    const json said = ToJson(*plan);
    trajectory->plans.assign(std::make_move_iterator(plan->appends.begin()),
                             std::make_move_iterator(plan->appends.end()));
    return Give(said, decision);
  });
}

rr_error* rr_trajectory_take_plan(rr_trajectory* trajectory, rr_plan** plan) {
  return Guard([&]() -> absl::Status {
    if (trajectory->plans.empty()) return Invalid(Reason::kField, "plan", "the turn has no more appends");
    *plan = new rr_plan{std::move(trajectory->plans.front())};
    trajectory->plans.pop_front();
    return absl::OkStatus();
  });
}

rr_error* rr_trajectory_on_outcome(rr_trajectory* trajectory, const char* json, size_t size) {
  return Guard([&] {
    const auto outcome = OutcomeFrom(Text(json, size));
    if (outcome.ok()) trajectory->trajectory.OnOutcome(*outcome);
    return outcome.status();
  });
}

rr_error* rr_trajectory_on_dropped(rr_trajectory* trajectory, int64_t begin, int64_t end) {
  return Guard([&]() -> absl::Status {
    if (begin < 0 || begin > end) return Invalid(Reason::kField, "rows", "are no range");
    trajectory->trajectory.OnDropped({begin, end});
    return absl::OkStatus();
  });
}

rr_error* rr_trajectory_on_state(rr_trajectory* trajectory, const char* json, size_t size) {
  return Guard([&] {
    const auto state = StateFrom(Text(json, size));
    return state.ok() ? trajectory->trajectory.OnState(*state) : state.status();
  });
}

rr_error* rr_trajectory_on_truncated(rr_trajectory* trajectory, const char* json, size_t size) {
  return Guard([&]() -> absl::Status {
    const auto state = StateFrom(Text(json, size));
    if (!state.ok()) return state.status();
    if (!*state) return Invalid(Reason::kField, "states", "has none");
    trajectory->trajectory.OnTruncated(**state);
    return absl::OkStatus();
  });
}

void rr_trajectory_on_truncate_failed(rr_trajectory* trajectory) { trajectory->trajectory.OnTruncateFailed(); }

int64_t rr_trajectory_next_row(const rr_trajectory* trajectory, const uint32_t* tokens, size_t token_count) {
  return trajectory->trajectory.NextRow(Tokens(tokens, token_count));
}

rr_error* rr_trajectory_state(const rr_trajectory* trajectory, rr_bytes** json) {
  return Guard([&] {
    const Trajectory& t = trajectory->trajectory;
    return Give(nlohmann::json{{"num_tokens", t.num_tokens()},
                               {"rows", t.rows()},
                               {"acknowledged_rows", t.acknowledged_rows()},
                               {"revision", t.revision()},
                               {"sealed", t.sealed()},
                               {"counters", ToJson(t.counters())}},
                json);
  });
}
