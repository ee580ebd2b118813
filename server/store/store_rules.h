// Rules that every store shares: what it rejects before it looks at any sample, how runs are joined, pages of lists,
// and the errors that all make alike.
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

// What a store can promise of an acknowledged append.
struct DurabilityLevels {
  Durability by_default = Durability::kMemory;
  Durability best = Durability::kMemory;
};

// `asked` (absent: the defaults), for a run that is made, with a durability. INVALID_ARGUMENT (kField) naming
// options.durability if it is above the best one; the other options are not checked.
absl::StatusOr<RunOptions> OptionsInForce(const std::optional<RunOptions>& asked, const RunOptions& defaults,
                                          const DurabilityLevels& levels);

// FAILED_PRECONDITION (kGeometryMismatch) unless what is given is what `run` has. Options without a durability fit any.
// Without a shard_fingerprint a run of several servers is joined only without a geometry, to look at one server's part.
absl::Status CheckJoin(const RunInfo& run, const Geometry* geometry, const std::optional<RunOptions>& options);

// The blocks are of this run's geometry and windows: it may be another one than when they were checked. Errors as those
// of CheckJoin and CheckShape. Reads no payload byte.
absl::Status CheckBlocks(const RunInfo& run, const AppendCommand& command);

// Ids, ranges, lengths of texts and tokens are inside their limits, and `blocks` show exactly the recorded rows of the
// header, ascending. INVALID_ARGUMENT (kField, kRowCount) naming the field. Reads no payload byte. Thread-safe.
absl::Status CheckAppend(const AppendHeader& header, absl::Span<const Block> blocks);

// What Store::List says of page_size. INVALID_ARGUMENT (kField) below 0.
absl::StatusOr<size_t> PageLimit(int32_t page_size);

// What a state takes in memory, about.
int64_t StateBytes(const SampleState& state);

// Adds a state to a page of `limit` samples, unless it is full: then it gets its token. A page has one state at least.
class PageBuilder {
 public:
  explicit PageBuilder(size_t limit) : limit_(limit) {}

  // Whether it was added.
  bool Add(SampleState state);
  ListPage Take() { return std::move(page_); }

 private:
  const size_t limit_;
  int64_t bytes_ = 0;
  ListPage page_;
};

// NOT_FOUND (kNoRun).
absl::Status NoRunError(absl::string_view run);
// NOT_FOUND (kNoSample). `sample`: its id, or a handle in words.
absl::Status NoSampleError(absl::string_view sample);
// ALREADY_EXISTS (kHandleCollision): sample `other` of the run has the handle.
absl::Status HandleCollisionError(absl::string_view sample, absl::string_view other);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_STORE_RULES_H_
