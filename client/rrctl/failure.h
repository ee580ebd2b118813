// What rrctl says and how it exits when something went wrong.
#ifndef CLIENT_RRCTL_FAILURE_H_
#define CLIENT_RRCTL_FAILURE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace routing_replay::client {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitUnreachable = 3,
  kExitUndecided = 4,
  kExitInterrupted = 130,
};

// What they mean, as `rrctl --help` and the table of client/rrctl/README.md have it.
struct ExitMeaning {
  ExitCode code;
  const char* meaning;
};
absl::Span<const ExitMeaning> ExitMeanings();

// `failed`: for what has no code of its own. A command for which kExitFailed is an answer gives kExitUndecided.
ExitCode ExitCodeFor(const absl::Status& status, ExitCode failed = kExitFailed);

// One line without its end: code, reason, message and what else the error's detail has.
//   "NOT_FOUND (NO_SAMPLE): run a has no sample b [sample=b]"
std::string FailureText(const absl::Status& status);

// What to do next of a failure that ends with `code`, as the end of its line; empty where the text says it itself.
std::string HintFor(const absl::Status& status, ExitCode code);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_FAILURE_H_
