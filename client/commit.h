// Checks that one sample is in the store, and marks rows that did not arrive.
#ifndef CLIENT_COMMIT_H_
#define CLIENT_COMMIT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

enum class CommitStatus : uint8_t {
  kCommitted,  // All appended rows are stored.
  kMarked,     // Missing rows are marked as unrecorded in the store.
  kMissing,    // Rows are missing and not marked, or it is unknown: see CommitOutcome::error.
};
const char* CommitStatusName(CommitStatus status);  // "committed", …

struct CommitRequest {
  std::string sample;
  // T, if the sample is complete: rows that are missing up to T - 2 are marked as unrecorded, and the sample is sealed.
  // Absent: rows after the last append are not marked, and the sample is not sealed.
  std::optional<int64_t> num_tokens;
  // Token ids from position 0 on, num_tokens of them or one fewer. Without num_tokens, T is their number. They are
  // compared with the tokens of the rows. If the store does not know the tokens and the sample is not sealed yet, they
  // are sent to it.
  std::optional<std::vector<uint32_t>> tokens;
  std::optional<int64_t> attempt;  // The attempt of the appends.
};

struct CommitOutcome {
  std::string sample;
  CommitStatus status = CommitStatus::kMissing;
  int64_t committed_rows = 0;
  std::optional<int64_t> num_tokens;
  absl::Status error;  // The reason, if the status is not "committed".
};

// Waits at most `timeout` for the outcomes of the sample's appends through `appenders`, and then checks the store.
// Errors: INVALID_ARGUMENT for a malformed request, CANCELLED if this thread's call was cancelled. All other failures
// are part of the outcome.
absl::StatusOr<CommitOutcome> Commit(Run& run, absl::Span<const std::shared_ptr<Appender>> appenders,
                                     CommitRequest request, std::chrono::milliseconds timeout);

}  // namespace routing_replay::client

#endif  // CLIENT_COMMIT_H_
