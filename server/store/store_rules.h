// Rules that all stores share: checks made before any sample is looked at, rules for joining runs, pages of lists, and
// common errors.
#ifndef SERVER_STORE_STORE_RULES_H_
#define SERVER_STORE_STORE_RULES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/store/store.h"

namespace routing_replay::server {

inline constexpr Clock::Duration kMaxTtl = std::chrono::hours(24 * 30);

// INVALID_ARGUMENT (kField) naming the option that is out of range.
absl::Status CheckRunOptions(const RunOptions& options);

// The durability levels that a store offers.
struct DurabilityLevels {
  Durability by_default = Durability::kMemory;
  Durability best = Durability::kMemory;
};

// The options for a new run: `asked`, or `defaults` if absent, with a durability filled in. INVALID_ARGUMENT (kField)
// naming options.durability if the store does not offer it. The other options are not checked.
absl::StatusOr<RunOptions> OptionsInForce(const std::optional<RunOptions>& asked, const RunOptions& defaults,
                                          const DurabilityLevels& levels);

// FAILED_PRECONDITION (kGeometryMismatch) unless the given geometry and options equal those of `run`. Options without a
// durability match any. Without a shard_fingerprint, a run that is spread over several servers can be joined only
// without a geometry, to look at one server's part.
absl::Status CheckJoin(const RunInfo& run, const Geometry* geometry, const std::optional<RunOptions>& options);

// Checks that the blocks fit this run's geometry and windows, because the run may have been dropped and created again
// since the blocks were made. Errors as those of CheckJoin and CheckShape. Reads no payload byte.
absl::Status CheckBlocks(const RunInfo& run, const AppendCommand& command);

// Checks that ids, ranges, and the lengths of texts and tokens are within their limits, and that `blocks` hold exactly
// the recorded rows of the header, in ascending order. INVALID_ARGUMENT (kField, kLength, kRowCount) naming the field.
// Reads no payload byte. Thread-safe.
absl::Status CheckAppend(const AppendHeader& header, absl::Span<const Block> blocks);

// Approximate memory of `state`.
int64_t StateBytes(const SampleState& state);

// Builds one page of at most `limit` states and about a megabyte. The first state fits in any case.
class PageBuilder {
 public:
  explicit PageBuilder(size_t limit) : limit_(limit) {}

  // Adds a state and returns true. If the page is full, sets its next_token and returns false.
  bool Add(SampleState state);
  ListPage Take() { return std::move(page_); }

 private:
  const size_t limit_;
  int64_t bytes_ = 0;
  ListPage page_;
};

// NOT_FOUND (kNoRun).
absl::Status NoRunError(absl::string_view run);
// NOT_FOUND (kNoSample). `sample`: its id, or for example "handle 42".
absl::Status NoSampleError(absl::string_view sample);
// ALREADY_EXISTS (kHandleCollision): sample `other` of the run has the handle of `sample`.
absl::Status HandleCollisionError(absl::string_view sample, absl::string_view other);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_STORE_RULES_H_
