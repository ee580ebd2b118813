// What an append means for a sample's content: the overlap judged, the rest measured. Changes nothing.
#ifndef SERVER_STORE_SAMPLE_APPEND_PLAN_H_
#define SERVER_STORE_SAMPLE_APPEND_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/store/sample/sample_content.h"
#include "server/store/store.h"

namespace routing_replay::server {

inline constexpr size_t kMaxProvenance = size_t{1} << 12;  // Entries of a sample.

struct AppendPlan {
  RowRange added;                       // From the committed count on; may be empty.
  std::vector<RowRange> unrecorded;     // Of the added rows; normal list.
  std::optional<uint32_t> token_check;  // The append's own, at added.begin.
  bool seals = false;                   // The content is not sealed yet and the append seals it.
  int64_t trimmed_rows = 0;
  int64_t conflicting_rows = 0;
  int64_t late_rows = 0;
  int64_t unverified_rows = 0;
};

AppendTokens TokensOf(const AppendHeader& header);

// Steps 2, 3 and 5 of store.h against `content`. Requires CheckAppend. Errors: ALREADY_EXISTS (kOtherTokens,
// kConflictingRows), FAILED_PRECONDITION (kSealed; kGap with committed_rows and missing_rows; kLength: the sample
// would have more than kMaxUnrecordedRanges ranges or kMaxProvenance), INVALID_ARGUMENT (kRowCount), DATA_LOSS.
absl::StatusOr<AppendPlan> PlanAppend(const RunInfo& run, const SampleContent& content, const AppendHeader& header,
                                      absl::Span<const Block> blocks);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SAMPLE_APPEND_PLAN_H_
