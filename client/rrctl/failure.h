// What rrctl says and how it exits when something went wrong.
#ifndef CLIENT_RRCTL_FAILURE_H_
#define CLIENT_RRCTL_FAILURE_H_

#include <string>

#include "absl/status/status.h"

namespace routing_replay {

// Documented in client/rrctl/README.md and `rrctl --help`.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,       // The server refused, or something is not there.
  kExitUsage = 2,        // The command line is wrong; no server was asked.
  kExitUnreachable = 3,  // No server there, none that answers in time, or one that is shutting down.
  kExitInterrupted = 130,
};
ExitCode ExitCodeFor(const absl::Status& status);

// One line without its end: code, reason, message and what else the error's detail has.
//   "NOT_FOUND (NO_SAMPLE): run a has no sample b [sample=b]"
std::string FailureText(const absl::Status& status);

}  // namespace routing_replay

#endif  // CLIENT_RRCTL_FAILURE_H_
