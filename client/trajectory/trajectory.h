// The rows of one sample that grows turn by turn. Decides which rows of an engine's answer are new, which stored rows
// must be removed, and what is wrong with the answer. Does no I/O and handles no payload bytes: turn_plan.h makes
// appends from the decisions.
//
//   rows     0   1   2   3   4   5   6   7   8           a history of T tokens has rows 0 … T − 2
//   turn 1   ├───────────────┤                           T = 6: rows 0 … 4
//   turn 2                   ├───────────────┤           T = 10: goes on at row 5, the row of turn 1's last token
//
// Rules:
//   - Row i depends on the tokens 0 … i. If a turn's tokens first differ from the history at position p, rows 0 … p − 1
//     stay, and the rows from p on are removed (Truncate, which begins a new revision). Token ids are compared; an
//     equal number of tokens proves nothing.
//   - The first write of a row wins. If a turn gives rows again, perhaps under newer weights, only its new rows are
//     added. Rows given again are compared with what was sent: a difference is counted, or an error in a strict run.
//   - If a turn does not give all of its rows (aborted, preempted, not recorded), the next turn may give the missing
//     ones. A turn whose first row leaves a gap is rejected, unless the gap is declared unrecorded.
//   - The last token was never fed to the model: if an engine gives a row for it, that row is left out.
//   - A fork shares the acknowledged rows of its parent, up to the first token or route that differs.
//
// A sample must have only one writer. After a failed append it is unknown what was stored, so the next decision is to
// ask the server.
#ifndef CLIENT_TRAJECTORY_TRAJECTORY_H_
#define CLIENT_TRAJECTORY_TRAJECTORY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/message/append_message.h"
#include "proto/wire/payload/tensor_payload.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::client {

// How the engine ended a request. Only a finished request must deliver all rows.
enum class TurnOutcome : uint8_t { kFinished, kAborted, kPreempted };

// One answer of the engine, or a change of the history without an answer.
struct Turn {
  // The new history is the first `tokens_start` tokens of the old history, then `tokens`. Absent: no change.
  std::optional<absl::Span<const uint32_t>> tokens;
  int64_t tokens_start = 0;
  // Absolute rows that the engine delivered, including rows whose ids are all −1 (unrecorded). Absent: none.
  std::optional<RowRange> rows;
  TurnOutcome outcome = TurnOutcome::kFinished;
  // `weights` has the versions of some of the rows: spans of absolute rows among `rows`, ascending and disjoint. The
  // rows that are in no span have weight_version and weight_label.
  int64_t weight_version = kUnknownWeightVersion;
  std::string weight_label;
  std::vector<WeightSpan> weights;
  // Says what to do if rows are missing before `rows`, or before the end of a sample that is sealed. If true, these
  // rows become unrecorded; if false, the turn is rejected.
  bool missing_is_unrecorded = false;
  bool seal = false;
  bool cut = false;  // The caller cuts the history: a sealed sample becomes open again.
};

// The decision about a turn.
struct TurnDecision {
  enum class Step : uint8_t {
    // The state of the sample on the server is unknown: call Stat, pass the result to OnState, then Decide again.
    kAsk,
    kTruncate,  // Truncate the sample to `truncate_rows` with `expected_revision`, call OnTruncated, then Decide again.
    kAppend,    // Make the appends described below; there may be none.
  };
  Step step = Step::kAppend;
  int64_t truncate_rows = 0;
  int64_t expected_revision = 0;

  // The appends of kAppend; not to be used with the other steps.
  std::optional<PrefixReference> prefix;  // The parent's rows that the first append shares.
  RowRange compare;                       // Rows of the turn that the sample or `prefix` has; Refine compares them.
  RowRange gap;                           // Unrecorded rows to append first.
  RowRange fresh;                         // Rows of the turn to append.
  RowRange tail;                          // Unrecorded rows to append last.
  std::optional<int64_t> seal_num_tokens;

  // About the turn. Final only with kAppend; not set with kAsk.
  int64_t num_tokens = 0;  // Length of the history after this turn.
  // First position at which the new history differs from the old one; the new length if it is only shorter.
  std::optional<int64_t> retokenised_at;
  int64_t surplus_rows = 0;      // Rows of the last token, which are left out.
  int64_t conflicting_rows = 0;  // Rows that already have another route, which stays.
  int64_t late_rows = 0;         // Rows that are already unrecorded, and stay so.
  int64_t uncompared_rows = 0;   // Rows that another writer has appended, so that they cannot be compared.

  int64_t shared_rows() const { return prefix ? prefix->rows : 0; }      // Shared from the parent.
  int64_t repeated_rows() const { return prefix ? 0 : compare.size(); }  // The sample has them already.
};

// The facts about one row that the trajectory keeps.
struct RowMark {
  enum class Kind : uint8_t {
    kRecorded,
    kUnrecorded,
    kUnknown,  // Committed by another writer: there is nothing to compare with.
  };
  Kind kind = Kind::kUnrecorded;
  // Digest of the ids of all MoE layers, in order. Two different rows of one geometry have equal digests with a
  // probability of about 1 in 2^64.
  uint64_t digest = 0;
  friend bool operator==(const RowMark&, const RowMark&) = default;
};

// True if both have a route and the routes are equal.
inline bool SameRoute(const RowMark& a, const RowMark& b) {
  return a.kind == RowMark::Kind::kRecorded && b.kind == RowMark::Kind::kRecorded && a.digest == b.digest;
}

// Makes one mark per row of rows.rows. Equal ids give equal marks, whatever the codec and the block size. Thread-safe.
std::vector<RowMark> MarkRows(const Geometry& geometry, const DecodedRows& rows);

// Thread-compatible.
class Trajectory {
 public:
  enum class Existing : uint8_t {
    kNone,     // The sample is new: the server is not asked.
    kResume,   // The sample may exist: continue after its rows if they belong to the same tokens.
    kReplace,  // The sample may exist: remove all of its rows.
  };
  struct Options {
    std::string sample;
    bool strict = false;  // As in the run's settings: conflicting rows are an error.
    Existing existing = Existing::kNone;
  };
  explicit Trajectory(Options options);
  // Makes a new sample that begins like this one, and does not follow later changes of it. The first turn of the new
  // sample must have the whole history.
  Trajectory Fork(std::string sample) const;

  // Decides what to do for the turn. Every error has rows() as committed_rows; kGap and kNotCommitted also name the
  // first missing row:
  //   INVALID_ARGUMENT kField: tokens_start beyond the history; kRowCount (field "turn.rows"): rows beyond the tokens,
  //   or a finished turn whose rows end before them
  //   FAILED_PRECONDITION kGap: rows start above rows(); kNotCommitted: a seal before all rows; kSealed
  //   ALREADY_EXISTS kOtherTokens: the sample has rows of other tokens
  absl::StatusOr<TurnDecision> Decide(const Turn& turn) const;
  // Call after Decide, with the marks of decision.compare: counts differences, or makes a fork share less.
  // ALREADY_EXISTS kConflictingRows in a strict run; FAILED_PRECONDITION as in Decide, for a fork that shares less.
  absl::Status Refine(const Turn& turn, absl::Span<const RowMark> marks, TurnDecision& decision) const;
  // Call before the appends of the decision are sent: adds the turn to the history. `marks`: one per row of
  // decision.fresh.
  void Commit(const Turn& turn, const TurnDecision& decision, absl::Span<const RowMark> marks);

  // Reports the outcome of an append, in any order. Before kAsk and kTruncate are carried out, all outcomes must have
  // been reported.
  void OnOutcome(const AppendOutcome& outcome);
  // Reports that an append was dropped by its queue: its rows become unrecorded, if they arrive at all.
  void OnDropped(RowRange rows);
  // Reports the answer to kAsk; nothing if the sample does not exist. ALREADY_EXISTS kOtherTokens if the sample has
  // rows of other tokens than the history.
  absl::Status OnState(const std::optional<SampleState>& state);
  void OnTruncated(const SampleState& state);
  // Reports that it is unknown whether the sample was truncated.
  void OnTruncateFailed() { in_doubt_ = true; }

  // Returns the first row that the engine must return for a request with this context.
  int64_t NextRow(absl::Span<const uint32_t> tokens) const;

  const std::string& sample() const { return options_.sample; }
  absl::Span<const uint32_t> tokens() const { return tokens_; }
  int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t rows() const { return static_cast<int64_t>(marks_.size()); }  // Number of rows that are sent or stored.
  int64_t acknowledged_rows() const { return acknowledged_; }
  int64_t revision() const { return revision_; }
  bool sealed() const { return sealed_num_tokens_.has_value(); }

 private:
  // The parts of a parent that a fork needs to share its rows.
  struct Parent {
    std::string sample;
    int64_t revision = 0;
    std::vector<uint32_t> tokens;
    std::vector<RowMark> marks;
  };

  // The new history, compared with the old one.
  struct NewHistory {
    int64_t num_tokens = 0;
    int64_t same = 0;      // Length of the common prefix.
    int64_t keep = 0;      // Number of rows that are kept.
    bool changed = false;  // True if the history changed other than by appending tokens.
  };
  absl::StatusOr<NewHistory> Read(const Turn& turn) const;
  absl::StatusOr<NewHistory> ReadResumed(const Turn& turn) const;
  // `held`: the number of rows that are kept.
  absl::Status DecideRows(const Turn& turn, int64_t held, TurnDecision& decision) const;
  absl::Status RefinePrefix(const Turn& turn, absl::Span<const RowMark> marks, TurnDecision& decision) const;
  absl::Status DecideSeal(const Turn& turn, TurnDecision& decision) const;
  // Returns how many rows of the parent match the new history.
  int64_t Shareable(const Turn& turn) const;
  // Makes an error that names this sample and its number of rows.
  absl::Status Error(absl::StatusCode code, ErrorDetail detail, absl::string_view what) const;

  Options options_;
  std::vector<uint32_t> tokens_;
  std::vector<RowMark> marks_;    // One per row; fewer than tokens_, except in a resumed sample.
  std::optional<Parent> parent_;  // Set in a fork until its sample is created.
  int64_t acknowledged_ = 0;
  int64_t revision_ = 0;
  std::optional<int64_t> sealed_num_tokens_;
  bool in_doubt_ = false;
  bool replace_ = false;  // Existing::kReplace: the rows found at the start must be removed.
  // Token check of the rows that were found at the start, until the first turn brings tokens.
  std::optional<TokenCheck> resumed_check_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_TRAJECTORY_TRAJECTORY_H_
