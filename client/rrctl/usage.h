// What is said of a command line that cannot be parsed.
#ifndef CLIENT_RRCTL_USAGE_H_
#define CLIENT_RRCTL_USAGE_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace routing_replay {

// INVALID_ARGUMENT in one line: which word is wrong, those of the same kind that are nearest to it, and which --help
// lists them all. `error` is what app.parse() threw.
absl::Status UsageError(const CLI::App& app, const CLI::ParseError& error);

// Those of `words` that `word` was most likely meant to be: a letter or two differ. In their order.
std::vector<std::string> Nearest(absl::string_view word, const std::vector<std::string>& words);

}  // namespace routing_replay

#endif  // CLIENT_RRCTL_USAGE_H_
