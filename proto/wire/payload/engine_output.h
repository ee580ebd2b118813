// What an engine says of its output besides the ids: which rows of the sample its tensor holds, and the weight versions
// of the tokens.
#ifndef PROTO_WIRE_PAYLOAD_ENGINE_OUTPUT_H_
#define PROTO_WIRE_PAYLOAD_ENGINE_OUTPUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay {
inline namespace wire {

// What fewer rows than asked for mean. An engine's rows always end with that of the last but one token.
enum class ShortRows : uint8_t {
  kRefuse = 1,          // The source leaves none out: the count of tokens or the shape is wrong.
  kMissingAtFront = 2,  // A prefix cache had none for the first tokens.
};

// What an engine was asked, and how much it gave.
struct RowClaim {
  int64_t prompt_tokens = 0;  // As the model saw them, media expanded.
  int64_t output_tokens = 0;  // Sampled ones, the last one included.
  int64_t start = 0;          // First row asked for (vLLM's routed_experts_prompt_start, SGLang's …_start_len).
  int64_t rows = 0;           // Slots of the tensor's first axis.
  ShortRows short_rows = ShortRows::kRefuse;
};

// The rows [row_start, T − 1) of the sample: first `missing_rows` unrecorded ones, then the slots `take` of the tensor.
struct RowAccount {
  int64_t row_start = 0;
  RowRange take;
  int64_t missing_rows = 0;
  int64_t surplus_rows = 0;  // 0 or 1: a row for the last token, which was never fed to the model. Not taken.
};

// How many of an engine's rows belong to the last token of `num_tokens`, which was never fed to the model (some engines
// hold such a row where a stop is met): 1 where they end with it, else 0. Also 0 for rows 1 … T − 1: they may as well
// be the rows 0 … T − 2 of an engine that ignored the start, and taking them for either would shift them silently.
int64_t SurplusRows(RowRange rows, int64_t num_tokens);

// T = prompt_tokens + output_tokens tokens have the rows start … T − 2, and perhaps a surplus one. INVALID_ARGUMENT
// (kField) for counts below 0 or over the limits of a sample or a start past the prompt; (kRowCount, field
// "append.rows") for any other number of rows, saying so where it is the one of an engine that ignored start.
absl::StatusOr<RowAccount> AccountRows(const RowClaim& claim);

// Output tokens begin, …, end - 1 of a response were sampled with these weights (vLLM's weight_versions).
struct VersionedTokens {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t version = kUnknownWeightVersion;
  std::string label;
};

// The number of a version that an engine gives as text: that of its decimals where they are a non-negative int64,
// otherwise kUnknownWeightVersion; the text itself stays as the label.
int64_t VersionNumber(absl::string_view text);

// Output token j of a prompt of P tokens was sampled by the forward pass of position P - 1 + j, so `tokens` begin, …,
// end - 1 are the rows P - 1 + begin, …. The rows from `row_start` up to the first output token are of its version, if
// the spans begin with it, and in an answer without output that of its span; rows of output tokens that no span holds
// have none. Ascending, disjoint, none empty, none before row_start. INVALID_ARGUMENT (kField, "weight_versions")
// naming the span that is reversed, not behind the one before, or past the output.
absl::StatusOr<std::vector<WeightSpan>> OutputWeights(absl::Span<const VersionedTokens> spans, int64_t prompt_tokens,
                                                      int64_t output_tokens, int64_t row_start);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_ENGINE_OUTPUT_H_
