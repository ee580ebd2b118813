// Rules about runs that every store shares.
#ifndef SERVER_STORE_RUN_OPTIONS_H_
#define SERVER_STORE_RUN_OPTIONS_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

}  // namespace routing_replay::server

#endif  // SERVER_STORE_RUN_OPTIONS_H_
