// Rules about runs that every store shares.
#ifndef SERVER_STORE_RUN_OPTIONS_H_
#define SERVER_STORE_RUN_OPTIONS_H_

#include "absl/status/status.h"
#include "server/store/store.h"

namespace routing_replay {

inline constexpr Clock::Duration kMaxTtl = std::chrono::hours(24 * 30);

// INVALID_ARGUMENT (kField) naming the option that is out of range.
absl::Status CheckRunOptions(const RunOptions& options);

// FAILED_PRECONDITION (kGeometryMismatch) unless what is given is what `run` has.
absl::Status CheckJoin(const RunInfo& run, const Geometry* geometry, const std::optional<RunOptions>& options);

// The blocks are of this run's geometry and windows: it may be another one than when they were checked. Errors as those
// of CheckJoin and CheckShape. Reads no payload byte.
absl::Status CheckBlocks(const RunInfo& run, const AppendCommand& command);

}  // namespace routing_replay

#endif  // SERVER_STORE_RUN_OPTIONS_H_
