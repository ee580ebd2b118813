// An engine's weight versions of output tokens → weights of rows.
#ifndef PROTO_WIRE_PAYLOAD_OUTPUT_WEIGHTS_H_
#define PROTO_WIRE_PAYLOAD_OUTPUT_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample_state.h"

namespace routing_replay {
inline namespace wire {

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

#endif  // PROTO_WIRE_PAYLOAD_OUTPUT_WEIGHTS_H_
