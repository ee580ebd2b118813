#include "tests/bench/common/team.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::bench {
namespace {

using quickstart::ChildProcess;

constexpr std::chrono::seconds kAnswerTimeout(300);
constexpr char kGood[] = "ok ";

std::string Answer(const absl::StatusOr<std::string>& result) {
  return result.ok() ? absl::StrCat(kGood, *result) : result.status().ToString();
}

// Runs in the child until the parent closes the pipe.
int AnswerCommands(Role& role) {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::vector<std::string> command;
    for (std::string word; words >> word;) command.push_back(word);
    std::cout << Answer(role.Do(command)) << std::endl;
  }
  return 0;
}

}  // namespace

absl::StatusOr<Team> Team::Start(const std::string& name, int count, const MakeRole& make) {
  Team team;
  std::cout.flush();
  for (int i = 0; i < count; ++i) {
    auto child = ChildProcess::Fork(absl::StrCat(name, " ", i), [&] {
      prctl(PR_SET_NAME, name.c_str());  // The name that ps, top and profilers show.
      const absl::StatusOr<std::unique_ptr<Role>> role = make(i);
      if (role.ok()) return AnswerCommands(**role);
      std::cerr << name << " " << i << ": " << role.status() << std::endl;
      return 1;
    });
    if (!child.ok()) return child.status();
    team.pids_.push_back((*child)->pid());
    team.children_.push_back(*std::move(child));
  }
  return team;
}

absl::StatusOr<Team> Team::Spawn(const std::string& name, const std::vector<std::vector<std::string>>& programs,
                                 const std::vector<std::pair<std::string, std::string>>& variables) {
  Team team;
  for (size_t i = 0; i < programs.size(); ++i) {
    std::vector<char*> argv;
    for (const std::string& argument : programs[i]) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    auto child = ChildProcess::Fork(absl::StrCat(name, " ", i), [&] {
      for (const auto& [variable, value] : variables) setenv(variable.c_str(), value.c_str(), 1);
      return execv(argv[0], argv.data());
    });
    if (!child.ok()) return child.status();
    team.pids_.push_back((*child)->pid());
    team.children_.push_back(*std::move(child));
  }
  return team;
}

absl::StatusOr<std::vector<std::string>> Team::Call(const std::string& command) {
  for (const auto& child : children_) {
    if (absl::Status status = child->WriteLine(command); !status.ok()) return status;
  }
  std::vector<std::string> answers;
  for (const auto& child : children_) {
    const absl::StatusOr<std::string> line = child->ReadLine(kAnswerTimeout);
    if (!line.ok()) return line.status();
    if (!absl::StartsWith(*line, kGood)) {
      return absl::InternalError(absl::StrCat(child->name(), ", ", command, ": ", *line));
    }
    answers.push_back(line->substr(std::string(kGood).size()));
  }
  return answers;
}

}  // namespace routing_replay::bench
