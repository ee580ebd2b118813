#include "server/service/sample_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

SampleVerdict NotReady(std::string message) { return {SampleStatus::kNotReady, std::move(message)}; }

// None of the rows asked for is lost.
SampleVerdict CheckLost(const SampleState& state, const SampleRead& asked) {
  if (state.lost_end <= state.committed_rows) return {};
  int64_t end = asked.rows.empty() ? state.lost_end : asked.rows.back().end;
  if (asked.num_tokens) end = std::max(end, *asked.num_tokens - 1);
  if (end <= state.committed_rows) return {};
  return {SampleStatus::kLost, absl::StrCat("rows ", ToString(RowRange{state.committed_rows, state.lost_end}),
                                            " had been acknowledged, and the store came back without them")};
}

// Committed rows are those of T tokens, and T is the expected one.
SampleVerdict CheckLength(const SampleState& state, const SampleRead& asked, bool until_seal) {
  if (!asked.num_tokens) {
    if (state.sealed() || !asked.rows.empty() || !until_seal) return {};
    return NotReady(absl::StrCat("not sealed; ", state.committed_rows, " rows committed"));
  }
  if (state.sealed()) {
    if (*state.num_tokens == *asked.num_tokens) return {};
    return {SampleStatus::kLengthMismatch,
            absl::StrCat("sealed with ", *state.num_tokens, " tokens, expected ", *asked.num_tokens)};
  }
  if (state.committed_rows > *asked.num_tokens - 1) {
    return {SampleStatus::kLengthMismatch,
            absl::StrCat("holds ", state.committed_rows, " rows already, expected ", *asked.num_tokens, " tokens")};
  }
  return NotReady(
      absl::StrCat("not sealed, so its number of tokens is not known; ", state.committed_rows, " rows committed"));
}

SampleVerdict CheckRows(const SampleState& state, const SampleRead& asked) {
  const int64_t end = asked.rows.empty() ? 0 : asked.rows.back().end;
  if (end <= state.committed_rows) return {};
  const std::string what = absl::StrCat("rows up to ", end, " asked, ", state.committed_rows, " committed");
  if (state.sealed()) return {SampleStatus::kOutOfRange, what};
  return NotReady(what);
}

SampleVerdict CheckTokens(const SampleState& state, const SampleRead& asked,
                          const std::function<std::optional<bool>(const TokenCheck&)>& matches) {
  for (const TokenCheck& check : asked.token_checks) {
    if (check.rows > state.committed_rows && !state.sealed()) {
      return NotReady(absl::StrCat("token check at row ", check.rows, ", ", state.committed_rows, " rows committed"));
    }
    const std::optional<bool> same = matches(check);
    if (same.value_or(false)) continue;
    return {same ? SampleStatus::kTokensMismatch : SampleStatus::kTokensNotKnown,
            absl::StrCat(same ? "other tokens" : "tokens not known", " before row ", check.rows)};
  }
  return {};
}

SampleVerdict CheckWeights(const SampleState& state, const SampleRead& asked) {
  if (!asked.min_weight_version && !asked.max_weight_version) return {};
  const std::vector<RowRange> all = {{0, state.committed_rows}};
  for (const WeightSpan& span : state.weights) {
    if (Clip(asked.rows.empty() ? all : asked.rows, span.rows).empty()) continue;
    const bool known = span.version != kUnknownWeightVersion;
    if (known && span.version >= asked.min_weight_version.value_or(span.version) &&
        span.version <= asked.max_weight_version.value_or(span.version)) {
      continue;
    }
    return {SampleStatus::kVersionRefused, absl::StrCat("rows ", ToString(span.rows), " are of weight version ",
                                                        known ? absl::StrCat(span.version) : std::string("unknown"))};
  }
  return {};
}

SampleVerdict CheckRecorded(const SampleState& state) {
  if (!state.sealed() || state.committed_rows == 0) return {};
  if (TotalRows(state.unrecorded) < state.committed_rows) return {};
  return {SampleStatus::kNotRecorded, "sealed without a recorded row"};
}

}  // namespace

SampleVerdict CheckSample(const SampleState& state, const SampleRead& asked, bool until_seal,
                          const std::function<std::optional<bool>(const TokenCheck&)>& matches) {
  SampleVerdict verdict = CheckLost(state, asked);
  if (verdict.status == SampleStatus::kOk) verdict = CheckLength(state, asked, until_seal);
  if (verdict.status == SampleStatus::kOk) verdict = CheckRows(state, asked);
  if (verdict.status == SampleStatus::kOk) verdict = CheckTokens(state, asked, matches);
  if (verdict.status == SampleStatus::kOk) verdict = CheckWeights(state, asked);
  if (verdict.status == SampleStatus::kOk) verdict = CheckRecorded(state);
  return verdict;
}

}  // namespace routing_replay::server
