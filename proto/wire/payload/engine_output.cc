#include "proto/wire/payload/engine_output.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {
inline namespace wire {
namespace {

absl::Status CheckCount(const char* field, int64_t count, int64_t limit) {
  if (count >= 0 && count <= limit) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": ", count, " is not in [0, ", limit, "]"),
                   {.reason = Reason::kField, .field = field});
}

absl::Status WrongCount(const RowClaim& claim, int64_t expected, int64_t all) {
  std::string what =
      absl::StrCat("append.rows: ", claim.rows, " rows for ", claim.prompt_tokens, " prompt and ", claim.output_tokens,
                   " output tokens from row ", claim.start, " on, expected ", expected);
  if (claim.start == 1 && claim.rows == all) {
    absl::StrAppend(&what, "; one of the last token is among them, or the engine ignored the start row");
  } else if (claim.start > 0 && (claim.rows == all || claim.rows == all + 1)) {
    absl::StrAppend(&what, "; it is the count of all rows: the engine ignored the start row it was asked for");
  } else if (claim.rows < expected) {
    absl::StrAppend(&what, "; rows are missing, or tokens were counted that the engine cut off");
  }
  return MakeError(absl::StatusCode::kInvalidArgument, what, {.reason = Reason::kRowCount, .field = "append.rows"});
}

absl::Status CheckSpans(absl::Span<const VersionedTokens> spans, int64_t output_tokens) {
  int64_t end = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    const VersionedTokens& span = spans[i];
    if (span.begin < end || span.end < span.begin || span.end > output_tokens) {
      return Invalid("weight_versions",
                     absl::StrCat("span ", i, ", [", span.begin, ", ", span.end, "), is not within output tokens [",
                                  end, ", ", output_tokens, ")"));
    }
    end = span.end;
  }
  return absl::OkStatus();
}

}  // namespace

int64_t SurplusRows(RowRange rows, int64_t num_tokens) {
  return !rows.empty() && rows.end == num_tokens && rows.begin != 1 ? 1 : 0;
}

absl::StatusOr<RowAccount> AccountRows(const RowClaim& claim) {
  absl::Status status = CheckCount("prompt_tokens", claim.prompt_tokens, kMaxRows);
  status.Update(CheckCount("output_tokens", claim.output_tokens, kMaxRows));
  status.Update(CheckCount("start", claim.start, std::max<int64_t>(claim.prompt_tokens, 0)));
  status.Update(CheckCount("rows", claim.rows, kMaxRows + 1));
  if (!status.ok()) return status;
  const int64_t all = std::max<int64_t>(0, claim.prompt_tokens + claim.output_tokens - 1);
  const int64_t expected = std::max<int64_t>(0, all - claim.start);
  RowAccount account{.row_start = claim.start, .take = {0, std::min(claim.rows, expected)}};
  if (claim.rows == expected) return account;
  account.surplus_rows =
      SurplusRows(RowRange::OfSize(claim.start, claim.rows), claim.prompt_tokens + claim.output_tokens);
  if (account.surplus_rows > 0) return account;
  if (claim.rows < expected && claim.short_rows == ShortRows::kMissingAtFront) {
    account.missing_rows = expected - claim.rows;
    return account;
  }
  return WrongCount(claim, expected, all);
}

int64_t VersionNumber(absl::string_view text) {
  int64_t number = kUnknownWeightVersion;
  const bool decimals = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  return decimals && absl::SimpleAtoi(text, &number) ? number : kUnknownWeightVersion;
}

absl::StatusOr<std::vector<WeightSpan>> OutputWeights(absl::Span<const VersionedTokens> spans, int64_t prompt_tokens,
                                                      int64_t output_tokens, int64_t row_start) {
  for (const int64_t count : {prompt_tokens, output_tokens, row_start}) {
    if (count < 0 || count > kMaxRows) return Invalid("weight_versions", "counts of tokens are out of range");
  }
  if (absl::Status status = CheckSpans(spans, output_tokens); !status.ok()) return status;
  const int64_t first_row = prompt_tokens - 1;
  std::vector<WeightSpan> weights;
  for (const VersionedTokens& span : spans) {
    // An answer without output has no token to name: its span stands for the prompt's rows.
    if (span.begin == span.end && (output_tokens > 0 || !weights.empty())) continue;
    const int64_t begin = span.begin == 0 ? row_start : std::max(row_start, first_row + span.begin);
    const RowRange rows{begin, first_row + span.end};
    if (!rows.empty()) weights.push_back({rows, span.version, span.label});
  }
  return weights;
}

}  // namespace wire
}  // namespace routing_replay
