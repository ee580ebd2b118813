// Processes that do the same work at the same time: the parent sends each of them a command and waits for all answers.
#ifndef TESTS_BENCH_COMMON_TEAM_H_
#define TESTS_BENCH_COMMON_TEAM_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tests/quickstart/process.h"

namespace routing_replay::bench {

// The work of a child. It gets one command at a time, as words without spaces.
class Role {
 public:
  virtual ~Role() = default;
  // Returns the answer, one line.
  virtual absl::StatusOr<std::string> Do(absl::Span<const std::string> command) = 0;
};

using MakeRole = std::function<absl::StatusOr<std::unique_ptr<Role>>(int index)>;

// The parent must have no threads when it starts a team.
class Team {
 public:
  // Calls `make` in each child.
  static absl::StatusOr<Team> Start(const std::string& name, int count, const MakeRole& make);

  // Starts a program per child. The programs must answer commands as the children of Start do: "ok ", then the answer.
  // `variables` are added to the environment.
  static absl::StatusOr<Team> Spawn(const std::string& name, const std::vector<std::vector<std::string>>& programs,
                                    const std::vector<std::pair<std::string, std::string>>& variables);

  // Sends the command to every child and returns their answers, or the first error with the child's name.
  absl::StatusOr<std::vector<std::string>> Call(const std::string& command);
  absl::Span<const pid_t> pids() const { return pids_; }

 private:
  std::vector<std::unique_ptr<quickstart::ChildProcess>> children_;
  std::vector<pid_t> pids_;
};

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_COMMON_TEAM_H_
