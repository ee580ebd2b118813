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
  bool ids_and_weights = false;  // As in AppendOptions.
  std::optional<RowRange> take;  // Slots of the tensor's first axis to use; absent: all.
  int64_t row_start = 0;         // Absolute row of the first row.
  // Number of rows, from row_start on, that the engine did not deliver; the slots follow them.
  int64_t missing_rows = 0;
};

struct TurnPlan {
  TurnDecision decision;
  // For kAppend: queue these in this order. At most one append each for the gap, the fresh rows and the tail.
  std::vector<AppendPlan> appends;
};

// Decides, decodes the new rows and those to compare (no row twice, unless a fork shares less than its tokens suggest),
// and makes the appends. turn.rows is set from `rows` (null: none). `common` has the fields that all appends of the
// sample share: producer, group, engine; its other fields are ignored. For kAppend the trajectory counts the rows as
// sent: queue the appends. For another step, and on an error (those of Trajectory and of DecodeTensor), it has not
// changed.
absl::StatusOr<TurnPlan> PlanTurn(Turn turn, const TurnRows* rows, const AppendOptions& common,
                                  const Geometry& geometry, const BlockOptions& blocks, Trajectory& trajectory);

}  // namespace routing_replay::client

#endif  // CLIENT_TRAJECTORY_TURN_PLAN_H_
