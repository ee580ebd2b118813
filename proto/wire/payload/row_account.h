// Which rows of a sample an engine's tensor holds: counted from its tokens, never assumed.
#ifndef PROTO_WIRE_PAYLOAD_ROW_ACCOUNT_H_
#define PROTO_WIRE_PAYLOAD_ROW_ACCOUNT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "routing_replay/wire/row_range.h"

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

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_ROW_ACCOUNT_H_
