// What is said of a command line that cannot be parsed.
#ifndef CLIENT_RRCTL_USAGE_H_
#define CLIENT_RRCTL_USAGE_H_

#include <CLI/CLI.hpp>

#include "absl/status/status.h"

namespace routing_replay::client {

// INVALID_ARGUMENT in one line: which word is wrong, those of the same kind that are nearest to it, and which --help
// lists them all. `error` is what app.parse() threw.
absl::Status UsageError(const CLI::App& app, const CLI::ParseError& error);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_USAGE_H_
