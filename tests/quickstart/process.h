// A child process that takes commands on its standard input and prints one line per answer.
#ifndef TESTS_QUICKSTART_PROCESS_H_
#define TESTS_QUICKSTART_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay::quickstart {

// Not thread-safe. The child is killed when its parent dies, and at the latest in the destructor.
class ChildProcess {
 public:
  // Starts the program `arguments[0]` with the other arguments. It inherits standard error.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::string& name,
                                                             const std::vector<std::string>& arguments);
  // Forks this process and runs `role` in the child, whose exit status is the value of `role`. This process must have
  // no threads and must have flushed its streams.
  // must have flushed its streams.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Fork(const std::string& name, const std::function<int()>& role);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }
  absl::Status WriteLine(absl::string_view line);
  // Returns the next line, without its newline. UNAVAILABLE if the child closed its output; DEADLINE_EXCEEDED if no
  // line came within the time.
  absl::StatusOr<std::string> ReadLine(std::chrono::milliseconds timeout);
  // Waits for the child. INTERNAL unless it exits with status 0 within the time.
  absl::Status WaitForSuccess(std::chrono::milliseconds timeout);
  bool running();
  void Terminate();  // SIGTERM

 private:
  ChildProcess(std::string name, pid_t pid, int input, int output)
      : name_(std::move(name)), pid_(pid), input_(input), output_(output) {}

  std::string name_;
  pid_t pid_;
  int input_;
  int output_;
  std::string unread_;
  int wait_status_ = 0;
  bool ended_ = false;
};

}  // namespace routing_replay::quickstart

#endif  // TESTS_QUICKSTART_PROCESS_H_
