#include "client/testing/reference_trajectory.h"

#include <algorithm>

namespace routing_replay::testing {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr auto kExists = absl::StatusCode::kAlreadyExists;

int64_t Size(const auto& list) { return static_cast<int64_t>(list.size()); }
bool IsPrefix(const Tokens& a, const Tokens& b) {
  return a.size() <= b.size() && std::equal(a.begin(), a.end(), b.begin());
}
int64_t LastRow(const Tokens& history) { return std::max<int64_t>(0, Size(history) - 1); }

// Returns the end of the rows that the turn delivers, not counting a row for the last token.
int64_t GivenEnd(const ReferenceTurn& turn, const Tokens& history) {
  const int64_t end = *turn.row_start + Size(turn.labels);
  // If the rows start at 1, the additional row need not be one for the last token: the engine may have ignored the
  // start and delivered rows from 0 on.
  const bool surplus = !turn.labels.empty() && end == Size(history) && *turn.row_start != 1;
  return surplus ? end - 1 : end;
}

}  // namespace

Tokens ReferenceTrajectory::History(const ReferenceTurn& turn) const {
  if (!turn.tokens) return tokens;
  Tokens history(tokens.begin(), tokens.begin() + turn.tokens_start);
  for (const uint32_t token : *turn.tokens) history.push_back(token);
  return history;
}

ReferenceAnswer ReferenceTrajectory::Keep(const ReferenceTurn& turn, int64_t& keep) const {
  if (resumed || (tokens.empty() && !rows.empty())) {
    if (!turn.tokens || turn.tokens_start != 0) return {kInvalid, Reason::kField};
    if (!resumed || Size(*turn.tokens) < Size(*resumed)) return {kExists, Reason::kOtherTokens};
    for (int64_t i = 0; i < Size(*resumed); ++i) {
      if ((*turn.tokens)[i] != (*resumed)[i]) return {kExists, Reason::kOtherTokens};
    }
    keep = std::min(Size(rows), LastRow(*turn.tokens));
    if (sealed && !turn.cut && Size(*turn.tokens) != sealed) return {kPrecondition, Reason::kSealed};
    return Check(turn, *turn.tokens, keep);
  }
  if (turn.tokens && turn.tokens_start > Size(tokens)) return {kInvalid, Reason::kField};
  const Tokens history = History(turn);
  if (sealed && !turn.cut && (Size(history) != sealed || !IsPrefix(tokens, history))) {
    return {kPrecondition, Reason::kSealed};
  }
  keep = 0;
  while (keep < Size(rows) && keep < LastRow(history) && history[keep] == tokens[keep]) ++keep;
  return Check(turn, history, keep);
}

ReferenceAnswer ReferenceTrajectory::Check(const ReferenceTurn& turn, const Tokens& history, int64_t held) const {
  if (parent && (turn.row_start || turn.seal)) held = Shared(turn, history, false);
  int64_t reached = held;
  if (turn.row_start) {
    const int64_t end = GivenEnd(turn, history);
    if (end > LastRow(history)) return {kInvalid, Reason::kRowCount};
    if (turn.outcome == TurnOutcome::kFinished && end < LastRow(history)) return {kInvalid, Reason::kRowCount};
    if (*turn.row_start > held && !turn.missing_is_unrecorded) return {kPrecondition, Reason::kGap};
    reached = std::max(held, end);
  }
  if (turn.seal && history.empty()) return {kInvalid, Reason::kField};
  if (turn.seal && reached < LastRow(history) && !turn.missing_is_unrecorded) {
    return {kPrecondition, Reason::kNotCommitted};
  }
  return {};
}

int64_t ReferenceTrajectory::Shared(const ReferenceTurn& turn, const Tokens& history, bool compare_rows) const {
  int64_t n = 0;
  while (n < Size(parent->rows) && n < LastRow(history) && history[n] == parent->tokens[n]) {
    if (turn.row_start && n >= *turn.row_start + Size(turn.labels)) break;
    if (compare_rows && turn.row_start && n >= *turn.row_start) {
      const Label given = turn.labels[n - *turn.row_start];
      if (given && (parent->rows[n].foreign || given != parent->rows[n].label)) break;
    }
    ++n;
  }
  return n;
}

ReferenceAnswer ReferenceTrajectory::Add(const ReferenceTurn& turn, int64_t& shared) {
  const Tokens history = History(turn);
  shared = 0;
  ReferenceCounters c = counters;
  std::vector<ReferenceRow> now = rows;
  if (parent && (turn.row_start || turn.seal)) {
    shared = Shared(turn, history, true);
    now.assign(parent->rows.begin(), parent->rows.begin() + shared);
  }
  const auto push = [&](Label label, int64_t version) { now.push_back({label, version}); };
  if (turn.row_start) {
    const int64_t end = GivenEnd(turn, history);
    c.surplus_rows += *turn.row_start + Size(turn.labels) - end;
    while (Size(now) < *turn.row_start) push({}, kUnknownWeightVersion);
    for (int64_t row = *turn.row_start; row < end; ++row) {
      const Label given = turn.labels[row - *turn.row_start];
      if (row == Size(now)) {
        push(given, turn.versions[row - *turn.row_start]);
        continue;
      }
      if (row < shared) continue;
      ++c.repeated_rows;
      if (!given) continue;
      if (!now[row].label) {
        ++c.late_rows;
      } else if (now[row].foreign) {
        ++c.uncompared_rows;
      } else if (given != now[row].label) {
        ++c.conflicting_rows;
      }
    }
  }
  if (strict && c.conflicting_rows > counters.conflicting_rows) return {kExists, Reason::kConflictingRows};
  if (turn.seal) {
    if (Size(now) < LastRow(history) && !turn.missing_is_unrecorded) return {kPrecondition, Reason::kNotCommitted};
    while (Size(now) < LastRow(history)) push({}, kUnknownWeightVersion);
    sealed = Size(history);
  }
  if (turn.row_start || turn.seal) parent.reset();
  if (turn.tokens) resumed.reset();
  tokens = history;
  rows = now;
  counters = c;
  return {};
}

void ReferenceTrajectory::Truncate(int64_t keep) {
  rows.resize(keep);
  sealed.reset();
}

void ReferenceTrajectory::Lose(int64_t stored) {
  counters.lost_rows += Size(rows) - stored;
  rows.resize(stored);
}

void ReferenceTrajectory::Drop(RowRange dropped) {
  for (int64_t row = dropped.begin; row < dropped.end; ++row) rows[row].label.reset();
}

}  // namespace routing_replay::testing
