#include "proto/wire/payload/output_weights.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {
inline namespace wire {
namespace {

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
