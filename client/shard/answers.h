// What the answers of all servers of a run are together. Knows no gRPC.
#ifndef CLIENT_SHARD_ANSWERS_H_
#define CLIENT_SHARD_ANSWERS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace routing_replay::client {

// What became of a call of one member.
enum class AnswerKind {
  kGood = 0,
  kNoRun = 1,        // It has no such run.
  kUnreachable = 2,  // No answer.
  kRefused = 3,      // Any other error.
};
AnswerKind KindOf(const absl::Status& status);

// Whose answers are needed.
enum class Needed {
  kThoseThatAnswer = 0,  // At least one's. What a server that is away has cannot be had anyway.
  kThoseWithTheRun = 1,  // One without the run has nothing to do.
  kAll = 2,              // The whole is asked for: one that lost the run has lost a part of it.
};

struct JointAnswer {
  std::optional<size_t> failed;  // Nothing: the good answers are the whole. Else whose answer says why not.
  bool lost = false;             // That one lost the run, which others have.
};
JointAnswer JudgeAnswers(absl::Span<const AnswerKind> answers, Needed needed);

// DATA_LOSS (kNoRun): what JointAnswer::lost means.
absl::Status LostRunError(const std::string& endpoint);

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_ANSWERS_H_
