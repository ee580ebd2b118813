// Processes that do the same work at the same time: the parent sends each a command and waits for all answers.
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

// What a child does. Commands come one at a time, as words without spaces.
class Role {
 public:
  virtual ~Role() = default;
  // The answer, one line.
  virtual absl::StatusOr<std::string> Do(absl::Span<const std::string> command) = 0;
};

using MakeRole = std::function<absl::StatusOr<std::unique_ptr<Role>>(int index)>;

// The parent may have no threads while it starts teams.
class Team {
 public:
  // `make` is called in each child.
  static absl::StatusOr<Team> Start(const std::string& name, int count, const MakeRole& make);

  // A program per child that takes commands and answers as a child of Start does: "ok ", then the answer. Each has the
  // environment's variables and `variables`.
  static absl::StatusOr<Team> Spawn(const std::string& name, const std::vector<std::vector<std::string>>& programs,
                                    const std::vector<std::pair<std::string, std::string>>& variables);

  // Sends the command to every child and gives their answers; the first error, with the child's name.
  absl::StatusOr<std::vector<std::string>> Call(const std::string& command);
  absl::Span<const pid_t> pids() const { return pids_; }

 private:
  std::vector<std::unique_ptr<quickstart::ChildProcess>> children_;
  std::vector<pid_t> pids_;
};

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_COMMON_TEAM_H_
