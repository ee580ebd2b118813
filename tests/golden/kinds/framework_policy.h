// The padding policy of a framework's case.
#ifndef TESTS_GOLDEN_KINDS_FRAMEWORK_POLICY_H_
#define TESTS_GOLDEN_KINDS_FRAMEWORK_POLICY_H_

#include <string>

#include "absl/status/statusor.h"
#include "routing_replay/trainer/padding.h"
#include "tests/golden/kind.h"

namespace routing_replay::golden {

// The policy for `options`, which have the names of padding_* and rows_* files. Fails with "unknown policy …" for an
// unsupported framework.
absl::StatusOr<trainer::PaddingPolicy> PolicyOf(const std::string& framework, const Json& options);

// The policy's numbers for the batch: padded_lengths, cu_seqlens_padded, total_padded_rows and so on, named as in the
// golden files, and the multiples that they are based on.
absl::StatusOr<Json> NumbersOf(const trainer::UnpaddedBatch& batch, const trainer::PaddingPolicy& policy);

// Passes if `ours` contains all of `expected`.
Outcome CompareNumbers(const Json& ours, const Json& expected);

// A batch of samples with T - 1 recorded rows each.
trainer::UnpaddedBatch BatchOf(const std::vector<int64_t>& lengths, int32_t cp_size, int32_t tp_size,
                               bool sequence_parallel);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_KINDS_FRAMEWORK_POLICY_H_
