// What a trajectory is told of a turn, and what it answers. trajectory.h has the rules.
#ifndef CLIENT_TRAJECTORY_TURN_H_
#define CLIENT_TRAJECTORY_TURN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "proto/wire/message/append_message.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::client {

// How the engine ended a request. Only a finished one must give all rows.
enum class TurnOutcome : uint8_t { kFinished, kAborted, kPreempted };

// One answer of the engine, or a change of the history without one.
struct Turn {
  // The history is from now on its first `tokens_start` tokens and then these. Absent: it stays as it is.
  std::optional<absl::Span<const uint32_t>> tokens;
  int64_t tokens_start = 0;
  // Absolute rows that the engine gave, −1 rows counted. Absent: none.
  std::optional<RowRange> rows;
  TurnOutcome outcome = TurnOutcome::kFinished;
  // Of rows that no span of `weights` holds. `weights`: ascending, disjoint, absolute rows among those of `rows`.
  int64_t weight_version = kUnknownWeightVersion;
  std::string weight_label;
  std::vector<WeightSpan> weights;
  // Rows that nobody gave, before `rows` or before the seal, are unrecorded rows. False: they are an error.
  bool missing_is_unrecorded = false;
  bool seal = false;
  bool cut = false;  // The history is cut on purpose: a sealed sample is opened again.
};

// What to do for a turn.
struct TurnDecision {
  enum class Step : uint8_t {
    kAsk,       // Not sure what the server has. Ask Stat, tell OnState, decide again.
    kTruncate,  // Truncate the sample to `truncate_rows` under `expected_revision`, tell OnTruncated, decide again.
    kAppend,    // Append what is said here; perhaps nothing.
  };
  Step step = Step::kAppend;
  int64_t truncate_rows = 0;
  int64_t expected_revision = 0;

  // The rest is for kAppend.
  std::optional<PrefixReference> prefix;  // Of the first append.
  RowRange compare;                       // Rows of the turn that are held already: Refine compares them.
  RowRange gap;                           // Unrecorded rows to append first.
  RowRange fresh;                         // Rows of the turn to append.
  RowRange tail;                          // Unrecorded rows to append last.
  std::optional<int64_t> seal_num_tokens;

  int64_t num_tokens = 0;  // Of the history with the turn.
  // First position at which the turn's tokens differ from those that were told before, or at which they end.
  std::optional<int64_t> retokenised_at;
  int64_t surplus_rows = 0;      // Given for the last token, and left out.
  int64_t conflicting_rows = 0;  // Held with another route, which stays.
  int64_t late_rows = 0;         // Held as unrecorded, and stay so.
  int64_t uncompared_rows = 0;   // Held, but sent by somebody else.
};

// Since the trajectory was made.
struct TrajectoryCounters {
  int64_t turns = 0, aborted_turns = 0, preempted_turns = 0;
  int64_t appended_rows = 0;       // Recorded ones.
  int64_t unrecorded_rows = 0;     // Appended without a route: given as −1, declared missing, or dropped.
  int64_t unrecorded_samples = 0;  // Sealed without one recorded row.
  int64_t repeated_rows = 0;       // Given again, and not sent again.
  int64_t shared_rows = 0;         // Opened from another sample.
  int64_t shared_by_tokens = 0;    // Those of them that were not given again: only their tokens were compared.
  int64_t surplus_rows = 0;        // These four as in TurnDecision.
  int64_t conflicting_rows = 0;    // Those that the server found, too.
  int64_t late_rows = 0;
  int64_t uncompared_rows = 0;
  int64_t retokenised = 0;     // Turns that changed the history.
  int64_t truncated_rows = 0;  // Taken back with the tokens.
  int64_t lost_rows = 0;       // Appended, and not stored.
  int64_t failed_appends = 0;
};

}  // namespace routing_replay::client

#endif  // CLIENT_TRAJECTORY_TURN_H_
