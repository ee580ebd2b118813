// Makes the appends that carry the new rows of a turn.
#ifndef CLIENT_TRAJECTORY_TURN_PLAN_H_
#define CLIENT_TRAJECTORY_TURN_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/appender/append_plan.h"
#include "client/trajectory/trajectory.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::client {

// Rows in the form in which the engine delivered them.
struct TurnRows {
  TensorDescription tensor;
  absl::Span<const uint8_t> payload;
  std::optional<RowRange> take;  // Slots of the tensor's first axis to use; absent: all.
  int64_t row_start = 0;         // Absolute row of the first row.
  // The first `missing_rows` rows from row_start on were not delivered. The tensor's first slot is the row after them.
  int64_t missing_rows = 0;
};

struct TurnPlan {
  TurnDecision decision;
  // For kAppend: queue these in this order. At most one append each for the gap, the fresh rows and the tail.
  std::vector<AppendPlan> appends;
};

// Decides what to do for a turn, and makes the appends. Decodes only the new rows and the rows to compare, each once
// (twice only if a fork shares fewer rows than its tokens suggest). turn.rows is set from `rows`, which is null if
// there are none. `common` has the fields that all appends of the sample share: producer, group, engine; its other
// fields are ignored. If the step is kAppend, the trajectory counts the rows as sent, so the caller must queue the
// appends. After another step, or an error of Trajectory or DecodeTensor, the trajectory has not changed.
absl::StatusOr<TurnPlan> PlanTurn(Turn turn, const TurnRows* rows, const AppendOptions& common,
                                  const Geometry& geometry, const BlockOptions& blocks, Trajectory& trajectory);

}  // namespace routing_replay::client

#endif  // CLIENT_TRAJECTORY_TURN_PLAN_H_
