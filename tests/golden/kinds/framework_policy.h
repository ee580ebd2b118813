// The padding policy of a case of a framework.
#ifndef TESTS_GOLDEN_KINDS_FRAMEWORK_POLICY_H_
#define TESTS_GOLDEN_KINDS_FRAMEWORK_POLICY_H_

#include <string>

#include "absl/status/statusor.h"
#include "routing_replay/trainer/padding.h"
#include "tests/golden/kind.h"

namespace routing_replay::golden {

// `options` under the names of the files, padding_* or rows_*. A framework that the project does not know fails with
// "unknown policy …".
absl::StatusOr<trainer::PaddingPolicy> PolicyOf(const std::string& framework, const Json& options);

// What the policy says of the batch: padded_lengths, cu_seqlens_padded, total_padded_rows, … under the names of the
// files, and the multiples that they come from.
absl::StatusOr<Json> NumbersOf(const trainer::UnpaddedBatch& batch, const trainer::PaddingPolicy& policy);

// Passed if `ours` has all of `expected`.
Outcome CompareNumbers(const Json& ours, const Json& expected);

// The batch with rows as a sample has them: T - 1.
trainer::UnpaddedBatch BatchOf(const std::vector<int64_t>& lengths, int32_t cp_size, int32_t tp_size,
                               bool sequence_parallel);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_KINDS_FRAMEWORK_POLICY_H_
