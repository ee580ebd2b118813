// Converts structs of c_api.h to C++ values, and back.
#ifndef CLIENT_C_API_VALUES_H_
#define CLIENT_C_API_VALUES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/c_api/result.h"
#include "routing_replay/c_api.h"
#include "routing_replay/client.h"

namespace routing_replay::c_api {

inline absl::string_view View(rr_text text) { return {text.data == nullptr ? "" : text.data, text.size}; }
inline std::string String(rr_text text) { return std::string(View(text)); }

// Functions that return a StatusOr fail with INVALID_ARGUMENT, naming the field and what is wrong with it.

// 0 means the rollout.
absl::StatusOr<Producer> ProducerFrom(int32_t producer);
// 0 gives no value, which means both producers.
absl::StatusOr<std::optional<Producer>> ProducerOrBoth(int32_t producer);
// An empty name gives no codec.
absl::StatusOr<std::optional<Codec>> CodecFrom(absl::string_view name);
absl::StatusOr<Geometry> GeometryFrom(const rr_geometry& geometry);
absl::StatusOr<RunSettings> SettingsFrom(const rr_run_settings& settings);
std::vector<RowRange> RangesFrom(rr_ranges ranges);
std::vector<WeightSpan> WeightsFrom(const rr_weight_span* weights, size_t count);
// NULL gives no value.
std::optional<std::pair<int64_t, int64_t>> GroupsFrom(const rr_range* groups);
std::vector<std::string> StringsFrom(const rr_text* texts, size_t count);

// `path` names the tensor in errors.
absl::StatusOr<TensorDescription> TensorFrom(const rr_tensor& tensor, absl::string_view path = "append.tensor");
inline absl::Span<const uint8_t> PayloadOf(const rr_tensor& tensor) {
  return {static_cast<const uint8_t*>(tensor.data), tensor.size};
}
// Returns the ids; none if there are no tokens. Fails with the errors of TokenIds (proto/wire/token_ids.h).
absl::StatusOr<std::vector<uint32_t>> TokensFrom(const rr_tokens& tokens, absl::string_view field,
                                                 absl::string_view sample);

// The result owns everything except the payload and the token ids; the latter are stored in `tokens`.
absl::StatusOr<NewAppend> AppendFrom(const rr_append& append, std::vector<uint32_t>& tokens);

void Fill(const Geometry& geometry, ResultMemory& memory, rr_geometry& out);
void Fill(const RunSettings& settings, ResultMemory& memory, rr_run_settings& out);
// Fills everything except the rows and the ids.
void Fill(const SampleRecord& record, ResultMemory& memory, rr_sample_rows& out);
rr_counters Counters(absl::Span<const std::pair<std::string, int64_t>> counters, ResultMemory& memory);
inline rr_released Released(const ReleaseOutcome& outcome) { return {outcome.samples, outcome.bytes}; }
rr_sample_states* NewStates(absl::Span<const SampleState> states);
rr_outcomes* NewOutcomes(absl::Span<const AppendOutcome> outcomes);

}  // namespace routing_replay::c_api

#endif  // CLIENT_C_API_VALUES_H_
