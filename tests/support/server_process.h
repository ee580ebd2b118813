// A program in a process of its own, which a test may kill.
#ifndef TESTS_SUPPORT_SERVER_PROCESS_H_
#define TESTS_SUPPORT_SERVER_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace routing_replay::testing {

// Killed (SIGKILL) and reaped in the destructor. Not thread-safe.
class Process {
 public:
  // `log`: a file to which standard error is appended; empty: this program's standard error.
  static absl::StatusOr<std::unique_ptr<Process>> Start(const std::vector<std::string>& arguments,
                                                        const std::string& log = "");
  ~Process();

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // Stops the process until a SIGCONT. Unlike a plain SIGSTOP, it returns when all threads are stopped.
  void Pause() const;
  // Returns the exit status (128 + signal for a killed process), or DEADLINE_EXCEEDED.
  absl::StatusOr<int> Wait(std::chrono::milliseconds timeout);

 private:
  explicit Process(pid_t pid) : pid_(pid) {}
  pid_t pid_;
  bool reaped_ = false;
};

// A routing-replay-server on a free port of the loopback interface.
struct ServerProcess {
  std::unique_ptr<Process> process;
  std::string endpoint;
};
// Returns when the server listens. `log`: as for Process::Start.
absl::StatusOr<ServerProcess> StartServerProcess(const std::string& program, std::vector<std::string> flags,
                                                 const std::string& log = "");

// A value of /proc/PID/status in bytes, such as "VmHWM" or "VmRSS".
absl::StatusOr<int64_t> ProcessMemory(pid_t pid, const std::string& figure);

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_SERVER_PROCESS_H_
