// C functions for trajectories.
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/c_api/calls.h"
#include "client/c_api/objects.h"
#include "client/c_api/values.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

using namespace routing_replay;          // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::c_api;   // NOLINT(build/namespaces)
using namespace routing_replay::client;  // NOLINT(build/namespaces)

namespace {

// How long a fork of a trajectory waits for acks of the shared rows, if the call gives no timeout.
constexpr std::chrono::seconds kForkWait(1);

absl::StatusOr<Trajectory::Existing> ExistingFrom(absl::string_view name) {
  if (name.empty() || name == "none") return Trajectory::Existing::kNone;
  if (name == "resume") return Trajectory::Existing::kResume;
  if (name == "replace") return Trajectory::Existing::kReplace;
  return Invalid("existing", absl::StrCat(R"(must be "none", "resume" or "replace", got ")", name, "\""));
}

absl::StatusOr<TurnOutcome> OutcomeFrom(absl::string_view name) {
  if (name.empty() || name == "finished") return TurnOutcome::kFinished;
  if (name == "aborted") return TurnOutcome::kAborted;
  if (name == "preempted") return TurnOutcome::kPreempted;
  return Invalid("outcome", absl::StrCat(R"(must be "finished", "aborted" or "preempted", got ")", name, "\""));
}

absl::Status CheckRow(int64_t row, absl::string_view field) {
  if (row >= 0 && row <= kMaxRows) return absl::OkStatus();
  return Invalid(field, absl::StrCat(row, " is not in [0, ", kMaxRows, "]"));
}

// A turn as the caller gave it. Owns everything but the payload. Must not move.
struct GivenTurn {
  GivenTurn() = default;
  GivenTurn(const GivenTurn&) = delete;

  Turn turn;
  std::vector<uint32_t> tokens;
  std::optional<TurnRows> rows;
  std::string engine;

  absl::Status Read(const rr_turn& given) {
    RR_ASSIGN_OR_RETURN(turn.outcome, OutcomeFrom(View(given.outcome)));
    turn.weight_version = given.weight_version.present != 0 ? given.weight_version.value : kUnknownWeightVersion;
    turn.weight_label = String(given.weight_label);
    turn.weights = WeightsFrom(given.weights, given.weights_count);
    turn.missing_is_unrecorded = given.missing_is_unrecorded != 0;
    turn.seal = given.seal != 0;
    engine = String(given.engine);
    RR_RETURN_IF_ERROR(ReadTokens(given));
    return ReadRows(given);
  }

 private:
  absl::Status ReadTokens(const rr_turn& given) {
    if (const std::optional<int64_t> cut = Optional(given.cut)) {
      turn.cut = true;
      if (*cut < 1) return Invalid("turn.cut", "must be at least 1: the number of tokens to keep");
      turn.tokens = absl::Span<const uint32_t>();
      turn.tokens_start = *cut;
      return absl::OkStatus();
    }
    if (given.tokens.data == nullptr) return absl::OkStatus();
    RR_ASSIGN_OR_RETURN(tokens, TokensFrom(given.tokens, "tokens", ""));
    turn.tokens = absl::MakeConstSpan(tokens);
    turn.tokens_start = given.tokens_start;
    return absl::OkStatus();
  }

  absl::Status ReadRows(const rr_turn& given) {
    RR_RETURN_IF_ERROR(CheckRow(given.row_start, "turn.row_start"));
    RR_RETURN_IF_ERROR(CheckRow(given.missing_rows, "turn.missing_rows"));
    if (given.rows == nullptr) return absl::OkStatus();
    RR_ASSIGN_OR_RETURN(auto tensor, TensorFrom(*given.rows));
    rows = TurnRows{.tensor = std::move(tensor),
                    .payload = PayloadOf(*given.rows),
                    .row_start = given.row_start,
                    .missing_rows = given.missing_rows};
    if (given.rows->take != nullptr) rows->take = RowRange{given.rows->take->begin, given.rows->take->end};
    return absl::OkStatus();
  }
};

rr_turn_result* NewTurnResult(const TurnResult& turn) {
  const TurnDecision& decision = turn.decision;
  Result<rr_turn_result> result;
  *result = {.num_tokens = decision.num_tokens,
             .unrecorded_rows = turn.unrecorded_rows,
             .truncated_rows = turn.truncated_rows,
             .repeated_rows = decision.repeated_rows(),
             .conflicting_rows = decision.conflicting_rows,
             .late_rows = decision.late_rows,
             .uncompared_rows = decision.uncompared_rows,
             .shared_rows = decision.shared_rows(),
             .surplus_rows = decision.surplus_rows,
             .dropped_rows = turn.dropped_rows,
             .retokenised_at = Optional(decision.retokenised_at),
             .appended = result.Ranges(turn.appended)};
  return result.Release();
}

rr_trajectory* NewTrajectory(std::shared_ptr<SharedAppender> appender, std::unique_ptr<TrajectoryWriter> writer) {
  const auto shared = std::make_shared<SharedTrajectory>();
  shared->appender = std::move(appender);
  shared->writer = std::move(writer);
  return new rr_trajectory{shared};
}

}  // namespace

rr_error* rr_appender_new_trajectory(rr_appender* appender, const rr_trajectory_options* options,
                                     rr_trajectory** trajectory) {
  return Guard([&]() -> CallEnd {
    const std::shared_ptr<SharedAppender>& shared = appender->shared;
    RR_ASSIGN_OR_RETURN(const auto existing, ExistingFrom(View(options->existing)));
    RR_ASSIGN_OR_RETURN(auto writer,
                        TrajectoryWriter::New(shared->run, shared->appender,
                                              {.trajectory = {.sample = String(options->sample), .existing = existing},
                                               .group = Optional(options->group)}));
    *trajectory = NewTrajectory(shared, std::move(writer));
    return {};
  });
}

rr_error* rr_trajectory_add(rr_trajectory* trajectory, const rr_turn* turn, const rr_call* call,
                            const rr_turn_result** result) {
  return Guard([&]() -> CallEnd {
    const std::shared_ptr<SharedTrajectory>& shared = trajectory->shared;
    RR_RETURN_IF_ERROR(shared->CheckProcess());
    const auto given = std::make_shared<GivenTurn>();
    if (absl::Status status = given->Read(*turn); !status.ok()) return WithSample(status, shared->writer->sample());
    const auto work = [shared, given, result](TrajectoryWriter::Place place) {
      const TurnRows* rows = given->rows ? &*given->rows : nullptr;
      return Into(result, shared->writer->Add(given->turn, rows, given->engine, std::move(place)), NewTurnResult);
    };
    return PerformInOrder(call, shared->writer->order(), shared->calling, work);
  });
}

rr_error* rr_trajectory_fork(rr_trajectory* trajectory, rr_text sample, const rr_call* call, rr_trajectory** fork) {
  return Guard([&]() -> CallEnd {
    const std::shared_ptr<SharedTrajectory>& shared = trajectory->shared;
    RR_RETURN_IF_ERROR(shared->CheckProcess());
    const auto work = [shared, sample = String(sample), wait = TimeoutOf(call, kForkWait),
                       fork](TrajectoryWriter::Place place) -> CallEnd {
      RR_ASSIGN_OR_RETURN(auto writer, shared->writer->Fork(sample, wait, std::move(place)));
      *fork = NewTrajectory(shared->appender, std::move(writer));
      return {};
    };
    return PerformInOrder(call, shared->writer->order(), shared->calling, work);
  });
}

rr_error* rr_trajectory_next_row(rr_trajectory* trajectory, const rr_tokens* tokens, int64_t* row) {
  return Guard([&]() -> CallEnd {
    RR_RETURN_IF_ERROR(trajectory->shared->CheckProcess());
    TrajectoryWriter& writer = *trajectory->shared->writer;
    RR_ASSIGN_OR_RETURN(const auto ids, TokensFrom(*tokens, "tokens", writer.sample()));
    *row = writer.NextRow(ids);
    return {};
  });
}

rr_error* rr_trajectory_describe(rr_trajectory* trajectory, const rr_trajectory_state** state) {
  return Guard([&]() -> CallEnd {
    RR_RETURN_IF_ERROR(trajectory->shared->CheckProcess());
    const TrajectoryWriter::State known = trajectory->shared->writer->state();
    Result<rr_trajectory_state> result;
    *result = {.num_tokens = known.num_tokens, .rows = known.rows, .sealed = known.sealed ? 1 : 0};
    *state = result.Release();
    return {};
  });
}
