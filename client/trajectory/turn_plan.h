// A turn with what the engine gave for it → the appends that carry its new rows.
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

// Rows as the engine gave them.
struct TurnRows {
  TensorDescription tensor;
  absl::Span<const uint8_t> payload;
  bool ids_and_weights = false;  // As in AppendOptions.
  std::optional<RowRange> take;  // Slots of the tensor's first axis that are meant; absent: all.
  int64_t row_start = 0;         // Absolute row of the first row.
  int64_t missing_rows = 0;      // Rows from row_start on that the engine did not give, before the slots.
};

struct TurnPlan {
  TurnDecision decision;
  // With kAppend: to be queued in this order. At most one each for the gap, the fresh rows and the tail.
  std::vector<AppendPlan> appends;
};

// Decides, decodes what is new (and what is to be compared, no row twice unless a fork shares less than its tokens
// say), and makes the appends. turn.rows is set from `rows`, null: none. `common` says what all appends of the sample
// have in common: producer, group, engine; its other fields are not looked at. With a step of kAppend the trajectory
// counts the rows as sent: queue the appends. With another step, and with an error (those of Trajectory and of
// DecodeTensor), it has not changed.
absl::StatusOr<TurnPlan> PlanTurn(Turn turn, const TurnRows* rows, const AppendOptions& common,
                                  const Geometry& geometry, const BlockOptions& blocks, Trajectory& trajectory);

}  // namespace routing_replay::client

#endif  // CLIENT_TRAJECTORY_TURN_PLAN_H_
