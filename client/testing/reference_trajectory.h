// A slow and simple model of a trajectory: every token and every row's label in plain vectors. A label says which
// forward pass made the row; equal labels are equal routes.
#ifndef CLIENT_TRAJECTORY_REFERENCE_TRAJECTORY_H_
#define CLIENT_TRAJECTORY_REFERENCE_TRAJECTORY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/trajectory/trajectory.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::testing {

using Label = std::optional<uint64_t>;  // Unset: no route.
using Tokens = std::vector<uint32_t>;

struct ReferenceRow {
  Label label;
  int64_t version = kUnknownWeightVersion;
  bool foreign = false;  // Sent by an earlier trajectory of the sample.
};

struct ReferenceTurn {
  std::optional<Tokens> tokens;
  int64_t tokens_start = 0;
  std::optional<int64_t> row_start;  // Unset: no rows.
  std::vector<Label> labels;
  std::vector<int64_t> versions;  // One per label.
  client::TurnOutcome outcome = client::TurnOutcome::kFinished;
  bool missing_is_unrecorded = false;
  bool seal = false;
  bool cut = false;
};

struct ReferenceAnswer {
  absl::StatusCode code = absl::StatusCode::kOk;
  Reason reason = Reason::kUnspecified;
};

// Counts since the reference was made.
struct ReferenceCounters {
  int64_t repeated_rows = 0;
  int64_t surplus_rows = 0;
  int64_t conflicting_rows = 0;
  int64_t late_rows = 0;
  int64_t uncompared_rows = 0;
  int64_t lost_rows = 0;  // Appended, but not stored.
};

class ReferenceTrajectory {
 public:
  // The tokens and rows of a fork's parent. The fork may share the first of these rows.
  struct Parent {
    Tokens tokens;
    std::vector<ReferenceRow> rows;
  };

  bool strict = false;
  Tokens tokens;
  std::vector<ReferenceRow> rows;
  std::optional<int64_t> sealed;
  std::optional<Parent> parent;
  // The tokens of the rows that were already on the server when this trajectory began. Unset if the server has no token
  // check of these rows, and after the first turn that has tokens.
  std::optional<Tokens> resumed;
  ReferenceCounters counters;

  // Sets `keep` to the number of stored rows that stay valid in this turn, or returns the turn's error.
  ReferenceAnswer Keep(const ReferenceTurn& turn, int64_t& keep) const;
  // Adds the new rows of the turn; rows that the turn does not keep must have been truncated. Sets `shared` to the
  // number of rows that came from the parent.
  ReferenceAnswer Add(const ReferenceTurn& turn, int64_t& shared);
  void Truncate(int64_t keep);
  // Removes rows that never reached the server, which has only the first `stored` rows.
  void Lose(int64_t stored);
  void Drop(RowRange dropped);

 private:
  Tokens History(const ReferenceTurn& turn) const;
  int64_t Shared(const ReferenceTurn& turn, const Tokens& history, bool compare_rows) const;
  ReferenceAnswer Check(const ReferenceTurn& turn, const Tokens& history, int64_t held) const;
};

}  // namespace routing_replay::testing

#endif  // CLIENT_TRAJECTORY_REFERENCE_TRAJECTORY_H_
