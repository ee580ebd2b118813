// Shell completion. The shells' scripts only carry words to `rrctl __complete WORD…`, which answers from the tree of
// commands that also parses them, so that the two cannot differ.
#ifndef CLIENT_RRCTL_COMPLETION_H_
#define CLIENT_RRCTL_COMPLETION_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay::client {

inline constexpr char kCompleteCommand[] = "__complete";

struct Candidate {
  std::string value;
  std::string description;
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

struct Completions {
  std::vector<Candidate> candidates;
  bool files = false;  // Also the names of files.
};

// What stands on the command line so far: "--endpoint" or "RUN" → its values; flags have none.
using WordsByName = std::map<std::string, std::vector<std::string>>;
// Names of things on the server, for an argument that is called so ("RUN", "SAMPLE"). Empty if there are none or it
// cannot be asked.
using NameSource = std::function<std::vector<std::string>(absl::string_view argument, const WordsByName& words)>;

// What may stand for the last of `words`, which may be empty; the words before it are complete, the program's name is
// not among them. Commands at the place of a command, flags for a word that starts with '-', words of a {set} where an
// option's type is one, files for the type "FILE" and the arguments "FILE" and "DIR", names for other arguments
// and for the type "RUN". Options of the program are offered behind its commands too, unless used. The words need not
// be legal.
Completions Complete(const CLI::App& app, const std::vector<std::string>& words, const NameSource& names);

// As the scripts read it: "value<TAB>description" lines, and ":files".
std::string CompletionLines(const Completions& completions);

// The script for "bash", "zsh" or "fish". INVALID_ARGUMENT for another shell.
absl::StatusOr<std::string> CompletionScript(absl::string_view shell);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_COMPLETION_H_
