// Whether one sample is in the store, and what is done where rows did not come.
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
  kCommitted,  // All that was appended is there.
  kMarked,     // Of what is not there the store says that it is unrecorded.
  kMissing,
};
const char* CommitStatusName(CommitStatus status);  // "committed", …

struct CommitRequest {
  std::string sample;
  // Of the sample, where it is complete: what did not come is marked as unrecorded up to there, and the sample sealed.
  // Absent: nothing is marked that was not before.
  std::optional<int64_t> num_tokens;
  // Of positions from 0 on, num_tokens of them or one fewer, which say num_tokens: compared with those that the rows
  // came with, and told to the store where it does not know them and the sample is not sealed yet.
  std::optional<std::vector<uint32_t>> tokens;
  std::optional<int64_t> attempt;  // Of the appends.
};

struct CommitOutcome {
  std::string sample;
  CommitStatus status = CommitStatus::kMissing;
  int64_t committed_rows = 0;
  std::optional<int64_t> num_tokens;
  absl::Status error;  // Why it is not committed.
};

// Waits for the outcomes of what was appended of the sample through `appenders`, at most so long, and looks what is
// there. Errors: INVALID_ARGUMENT for a malformed request, CANCELLED by the call of this thread; all other trouble
// is in the outcome.
absl::StatusOr<CommitOutcome> Commit(Run& run, absl::Span<const std::shared_ptr<Appender>> appenders,
                                     CommitRequest request, std::chrono::milliseconds timeout);

}  // namespace routing_replay::client

#endif  // CLIENT_COMMIT_H_
