#include "client/rrctl/usage.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace routing_replay {
namespace {

// The innermost command that was named; the program where none was.
const CLI::App& CommandOf(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

std::vector<std::string> CommandsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

// Of the command and of the program, whose flags may stand behind every command.
std::vector<std::string> FlagsOf(const CLI::App& app, const CLI::App& command) {
  std::vector<std::string> names;
  const auto add = [&names](const CLI::App& owner) {
    for (const CLI::Option* option : owner.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  };
  add(command);
  if (&command != &app) add(app);
  return names;
}

// Letters to put in, take out or exchange on the way from one to the other.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t exchanged = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(row[j + 1], std::min({row[j] + 1, row[j + 1] + 1, exchanged}));
    }
  }
  return row.back();
}

std::string NotKnown(absl::string_view kind, const std::string& word, const std::vector<std::string>& known) {
  const std::vector<std::string> near = Nearest(word, known);
  return absl::StrCat("there is no ", kind, " '", word, "'",
                      near.empty() ? "" : absl::StrCat("; did you mean ", absl::StrJoin(near, " or "), "?"));
}

std::string WhatIsWrong(const CLI::App& app, const CLI::App& command, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  const auto flag = std::find_if(unknown.begin(), unknown.end(),
                                 [](const std::string& word) { return word.size() > 1 && word[0] == '-'; });
  if (flag != unknown.end()) return NotKnown("flag", flag->substr(0, flag->find('=')), FlagsOf(app, command));
  if (&command == &app && !unknown.empty()) return NotKnown("command", unknown.front(), CommandsOf(app));
  if (&command == &app && error.get_name() == "RequiredError") return "no command is given";
  if (!unknown.empty()) return absl::StrCat("'", unknown.front(), "' is one argument too many");
  return absl::StrReplaceAll(absl::StripAsciiWhitespace(error.what()), {{"\n", " "}});
}

}  // namespace

std::vector<std::string> Nearest(absl::string_view word, const std::vector<std::string>& words) {
  size_t best = std::max<size_t>(1, word.size() / 3);
  std::vector<std::string> nearest;
  for (const std::string& candidate : words) {
    const size_t distance = EditDistance(word, candidate);
    if (distance > best) continue;
    if (distance < best) nearest.clear();
    best = distance;
    nearest.push_back(candidate);
  }
  return nearest;
}

absl::Status UsageError(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = CommandOf(app);
  const std::string help = absl::StrCat(app.get_name(), &command == &app ? "" : " " + command.get_name(), " --help");
  return absl::InvalidArgumentError(absl::StrCat(WhatIsWrong(app, command, error), " (see ", help, ")"));
}

}  // namespace routing_replay
