#include "client/rrctl/usage.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "proto/wire/nearest.h"

namespace routing_replay::client {
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

std::string WhatIsWrong(const CLI::App& app, const CLI::App& command, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  const auto flag = std::find_if(unknown.begin(), unknown.end(),
                                 [](const std::string& word) { return word.size() > 1 && word[0] == '-'; });
  if (flag != unknown.end() && *flag == "--json") return "there is no flag '--json'; -w json is for every command";
  if (flag != unknown.end()) return ThereIsNo("flag", flag->substr(0, flag->find('=')), FlagsOf(app, command));
  if (&command == &app && !unknown.empty()) return ThereIsNo("command", unknown.front(), CommandsOf(app));
  if (&command == &app && error.get_name() == "RequiredError") return "no command is given";
  if (!unknown.empty()) return absl::StrCat("'", unknown.front(), "' is one argument too many");
  return absl::StrReplaceAll(absl::StripAsciiWhitespace(error.what()), {{"\n", " "}});
}

}  // namespace

absl::Status UsageError(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = CommandOf(app);
  const std::string wrong = WhatIsWrong(app, command, error);
  // A flag of the program stands in no command's help.
  const bool program = &command == &app || app.get_option_no_throw(wrong.substr(0, wrong.find(':'))) != nullptr;
  const std::string help = absl::StrCat(app.get_name(), program ? "" : " " + command.get_name(), " --help");
  return absl::InvalidArgumentError(absl::StrCat(wrong, " (see ", help, ")"));
}

}  // namespace routing_replay::client
